// Which of a job's findings puts its result in doubt, on its page and in the list.

// A warning that explains nothing, and information that explains a rising reward.
const [UNEXPLAINED, QUESTION] = ["few_training_rows", "longer_completions"];

// findings: the most severe first → the one that explains the run, or undefined.
export const doubtIn = (findings) =>
  findings.find((one) => (one.severity === "warning" && one.code !== UNEXPLAINED) || one.code === QUESTION);
