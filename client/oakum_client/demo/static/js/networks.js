// The networks that the trainers train, computed here with their weights. A tensor is {shape, values}, values row by row.

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** W x + b for a weight of shape [units, inputs], as torch's Linear keeps it. */
export function linear({ weight, bias }, x) {
  const [units, inputs] = weight.shape;
  const sums = new Float64Array(units);
  for (let unit = 0; unit < units; unit++) {
    let sum = bias.values[unit];
    for (let i = 0; i < inputs; i++) sum += weight.values[unit * inputs + i] * x[i];
    sums[unit] = sum;
  }
  return sums;
}

export function softmax(logits) {
  const most = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - most));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/** What each of the sigmoid layers says to `x`, the lowest first. */
function activities(layers, x) {
  const found = [];
  for (const layer of layers) found.push(linear(layer, found.at(-1) ?? x).map(sigmoid));
  return found;
}

/** Two hidden layers and ten probabilities. */
export class Recogniser {
  constructor(tensors) {
    this.layers = layersOf(tensors, "layers");
    this.head = layerOf(tensors, "head");
  }

  recognise(image) {
    const hidden = activities(this.layers, image);
    return { hidden, probabilities: softmax(linear(this.head, hidden.at(-1))) };
  }
}

/** From an image to a code and back. The stack of Boltzmann machines decodes with the weights by which it encodes. */
export class Autoencoder {
  constructor(tensors) {
    const stacked = "w0" in tensors;
    this.encoder = stacked ? stackUp(tensors) : layersOf(tensors, "encoder");
    this.decoder = stacked ? stackDown(tensors) : layersOf(tensors, "decoder");
  }

  encode(image) {
    return activities(this.encoder, image).at(-1);
  }

  decode(code) {
    return activities(this.decoder, code).at(-1);
  }
}

function layersOf(tensors, name) {
  const layers = [];
  while (`${name}.${layers.length}.weight` in tensors) layers.push(layerOf(tensors, `${name}.${layers.length}`));
  return layers;
}

function layerOf(tensors, name) {
  return { weight: tensors[`${name}.weight`], bias: tensors[`${name}.bias`] };
}

const depthOf = (tensors) => Object.keys(tensors).filter((name) => name.startsWith("w")).length;

function stackUp(tensors) {
  return Array.from({ length: depthOf(tensors) }, (_, at) => ({ weight: transposed(tensors[`w${at}`]), bias: tensors[`b${at}`] }));
}

function stackDown(tensors) {
  return Array.from({ length: depthOf(tensors) }, (_, at) => ({ weight: tensors[`w${at}`], bias: tensors[`c${at}`] })).toReversed();
}

function transposed({ shape: [rows, columns], values }) {
  const turned = new Float32Array(values.length);
  for (let at = 0; at < values.length; at++) turned[(at % columns) * rows + Math.floor(at / columns)] = values[at];
  return { shape: [columns, rows], values: turned };
}
