// What one does to a trainer over the API. Each change is of the trainer as it was when it was looked up: what others have changed since is not overwritten.

export class SeenTrainer {
  #api;
  #path;
  #etag;

  /** Looks the trainer up as it is now; `after` another one, if that is given. */
  constructor(api, id, after = null) {
    this.id = id;
    this.#api = api;
    this.#path = `v1/trainers/${encodeURIComponent(id)}`;
    this.#etag = Promise.resolve(after?.looked).then(() => api.etagOf(this.#path));
    this.looked = this.#etag.catch(() => {}); // told when a change is sent
  }

  pause(reason) {
    return this.#send("PUT", "/pause", { reason });
  }

  unpause() {
    return this.#send("DELETE", "/pause");
  }

  change(fields) {
    return this.#send("PATCH", "", fields);
  }

  cancel() {
    return this.#send("POST", "/cancel");
  }

  retry() {
    return this.#send("POST", "/retry");
  }

  async #send(method, end, body) {
    return this.#api.send(method, this.#path + end, body, await this.#etag);
  }
}

/** Looks up several trainers, one after the other: many requests at once would be refused. */
export function seenTrainers(api, ids) {
  const trainers = [];
  for (const id of ids) trainers.push(new SeenTrainer(api, id, trainers.at(-1)));
  return trainers;
}
