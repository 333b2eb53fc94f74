// Requests to the server, as few as do: the newest counts, what it overtakes is cancelled or never sent.

export class Refusal extends Error {}

const answered = async (path, options) => {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is recmix explore still running?");
  }
  let content = null;
  try {
    content = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (answer.ok && content) return content;
  throw new Refusal(content?.error ?? `The server answered with status ${answer.status} and no reason.`);
};

export const get = (path, signal) => answered(path, { signal });

export const post = (path, content, signal) =>
  answered(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(content),
    signal,
  });

// The newest call wins: it cancels the one before, whose answer is dropped wherever it is.
export class Newest {
  #control = null;

  // `work` gets a signal; `then` its result, unless another call came in between.
  async run(work, then, failed) {
    this.cancel();
    const control = new AbortController();
    this.#control = control;
    try {
      const found = await work(control.signal);
      if (!control.signal.aborted) then(found);
    } catch (error) {
      if (!control.signal.aborted) failed(error);
    }
  }

  cancel() {
    this.#control?.abort();
    this.#control = null;
  }
}

// For what moves under the hand: one request at a time, and of those that wait only the newest.
// So something is shown while a slider moves, however slow the server is.
export class Steady {
  #busy = false;
  #next = null;
  #wanted = 0;
  #dropped = 0;

  run(work, then, failed) {
    this.#next = [work, then, failed, ++this.#wanted];
    if (!this.#busy) this.#go();
  }

  // What is under way is no longer of interest.
  cancel() {
    this.#next = null;
    this.#dropped = this.#wanted;
  }

  async #go() {
    this.#busy = true;
    while (this.#next) {
      const [work, then, failed, turn] = this.#next;
      this.#next = null;
      try {
        const found = await work();
        if (turn > this.#dropped) then(found);
      } catch (error) {
        if (turn > this.#dropped) failed(error);
      }
    }
    this.#busy = false;
  }
}
