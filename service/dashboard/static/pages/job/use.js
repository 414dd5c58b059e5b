// The commands that download a job's result and serve it elsewhere.

import { get, jobPath, SERVICE } from "../../api.js";
import { commands } from "../../copying.js";
import { el, failed, section } from "../../dom.js";

const GRPO_DEFAULT = "http://127.0.0.1:8000";

export class Use {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.box = el("div", { class: "panel" });
    this.root = section("Use the result", this.box);
    this.root.hidden = true;
  }

  // Shown once there are weights; the lessons of a training-free job cannot be served.
  async load(job) {
    const kinds = new Set(job.artifacts.map((artifact) => artifact.kind));
    if (this.isLoaded || !(kinds.has("adapter") || kinds.has("model"))) return;
    this.isLoaded = true;
    try {
      const { job, model } = await get(jobPath(this.id, "/manifest"), { signal: this.signal });
      this.root.hidden = !job.serve;
      this.box.replaceChildren(...this.parts(job.serve, kinds.has("adapter"), model));
    } catch (error) {
      if (this.signal.aborted) throw error;
      this.isLoaded = this.root.hidden = false;
      failed(this.box, error, () => this.load(job));
    }
  }

  parts(serve, isAdapter, model) {
    const grpo = SERVICE === GRPO_DEFAULT ? "grpo" : `grpo --url ${SERVICE}`;
    const folder = `${this.id}-merged`;
    const exports = `${SERVICE}${jobPath(this.id, "/exports")}`;
    const merged = `${SERVICE}${jobPath(this.id, "/adapter?format=merged")}`;
    const auth = '-H "Authorization: Bearer $GRPO_API_KEY"';
    const checkpoint = model.base_checkpoint ? ` --checkpoint ${model.base_checkpoint}` : "";
    return [
      isAdapter && model.base_job && commands("Download the base model, another job's result",
        `${grpo} download ${model.base_job}${checkpoint} --extract`),
      commands(isAdapter ? "Serve the adapter with vLLM" : "Serve the model with vLLM",
        `${grpo} download ${this.id} --extract\n${serve}`),
      isAdapter && model.base_place === "folder" && el("p", { class: "hint" },
        "vLLM cannot find ", el("code", {}, model.base), " by name: replace it with the folder of that model, or merge."),
      isAdapter && commands("Merge adapter and base into one model",
        `${grpo} merge ${this.id} --to ${folder}\nvllm serve ./${folder} --served-model-name ${this.id}`),
      isAdapter && commands("Download the merged model with curl",
        `curl -f "${exports}" ${auth} -H "Content-Type: application/json" -d '{"format": "merged"}'\n` +
        `curl -fL -o ${folder}.tar "${merged}" ${auth}  # once the export has succeeded\nmkdir ${folder} && tar -xf ${folder}.tar -C ${folder}`),
    ].filter(Boolean);
  }
}
