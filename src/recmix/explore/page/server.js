// Requests to the server. A new request replaces older ones: they are cancelled or never sent.

const request = async (path, options) => {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is recmix explore still running?");
  }
  let content = null;
  try {
    content = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (answer.ok && content) return content;
  const reason = content?.error ?? `The server answered with status ${answer.status} and gave no reason.`;
  throw Object.assign(new Error(reason), { status: answer.status });
};

export const get = (path, signal) => request(path, { signal });

export const post = (path, content, signal) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content), signal });

// Runs `work` once, this many milliseconds after the last call.
export const debounced = (work, milliseconds) => {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
};

// Each call cancels the one before. Only the answer of the last call is used.
export class LatestOnly {
  #control = null;

  // `work` gets an abort signal. `then` gets its result, `failed` its error.
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

// One request at a time; of the calls that wait, only the last is sent. While a slider moves, answers
// keep arriving even from a slow server.
export class OneAtATime {
  #busy = false;
  #waiting = null;
  #calls = 0;
  #cancelled = 0; // calls up to this number are no longer wanted

  run(work, then, failed) {
    this.#waiting = [work, then, failed, ++this.#calls];
    if (!this.#busy) this.#send();
  }

  cancel() {
    this.#waiting = null;
    this.#cancelled = this.#calls;
  }

  async #send() {
    this.#busy = true;
    while (this.#waiting) {
      const [work, then, failed, call] = this.#waiting;
      this.#waiting = null;
      try {
        const found = await work();
        if (call > this.#cancelled) then(found);
      } catch (error) {
        if (call > this.#cancelled) failed(error);
      }
    }
    this.#busy = false;
  }
}
