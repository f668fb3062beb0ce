// A spec as the text of a YAML file. Pure.

/** The fields, one on each line; values in JSON's form, which is YAML, too. */
export function yamlOf(spec) {
  return Object.entries(spec)
    .map(([name, value]) => `${name}: ${written(value)}\n`)
    .join("");
}

function written(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return /^[A-Za-z][\w./:-]*[\w/]$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value) ? value : JSON.stringify(value);
}

/** What a field of the form holds: a number, a truth value, a text, a number or a word, or, for fields with parts, JSON, the parts of a list, or a word. */
export function valueFrom(text, kind) {
  if (kind === "number") return Number(text);
  if (kind === "number or word") return Number.isNaN(Number(text)) ? text : Number(text);
  if (kind === "boolean") return text === "true";
  if (kind !== "parts") return text;
  if (/^[a-z]\w*$/i.test(text) && !/^(true|false|null)$/.test(text)) return text;
  for (const list of [text, `[${text}]`]) {
    try {
      return JSON.parse(list);
    } catch {
      // Perhaps in the other way.
    }
  }
  throw new Error('is not JSON: write it as {"every_s": 60}, [[1, 100], [2, 190]] or 1, 2, 4');
}

/** How a field of the spec's schema is entered: the kind of its values, and the choices if there are few. */
export function kindOf(schema) {
  const options = schema.anyOf ?? [schema];
  const types = new Set(options.map(({ type }) => type));
  const choices = options.find(({ enum: choice }) => choice)?.enum ?? null;
  if (choices && types.has("array")) return { kind: "parts", choices: null };
  if (types.has("integer") && types.has("string")) return { kind: "number or word", choices: null };
  if (choices) return { kind: "text", choices };
  if (types.has("boolean")) return { kind: "boolean", choices: ["false", "true"] };
  if (types.has("integer") || types.has("number")) return { kind: "number", choices: null };
  if (types.has("string")) return { kind: "text", choices: null };
  return { kind: "parts", choices: null };
}
