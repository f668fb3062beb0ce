// The demonstration's documents: what the trainers do, and their newest weights. What has not changed is answered with 304.

const ANSWER_WITHIN_MS = 8000;

export async function readState() {
  return await read("state");
}

/** {step, tensors} of a role's newest checkpoint. */
export async function readWeights(role) {
  const { step, tensors } = await read(`weights/${role}`);
  const decoded = Object.entries(tensors).map(([name, { shape, data }]) => [name, { shape, values: floats(data) }]);
  return { step, tensors: Object.fromEntries(decoded) };
}

async function read(path) {
  const answer = await fetch(new URL(path, document.baseURI), { cache: "no-cache", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  if (!answer.ok) throw new Error(`${path}: it answers ${answer.status}`);
  return await answer.json();
}

/** Little-endian float32 numbers from base 64. */
function floats(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, at) => view.getFloat32(4 * at, true));
}
