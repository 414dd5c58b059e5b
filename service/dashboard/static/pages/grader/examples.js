// Example graders, each with an answer and a row to try it on. Boundary: data only.

const ROW = { question: "What is 17 + 25?", answer: "42" };

export const EXAMPLES = [
  {
    name: "Number",
    grader: { type: "numeric", name: "correct", reference: "{{item.answer}}" },
    sample: "17 + 25 is 42.",
    item: ROW,
  },
  {
    name: "Exact text",
    grader: {
      type: "string_check", name: "exact", operation: "eq", input: "{{sample.output_text}}", reference: "{{item.answer}}",
    },
    sample: "42",
    item: ROW,
  },
  {
    name: "Tags in order",
    grader: { type: "format", name: "format", tags: ["think", "answer"] },
    sample: "<think>17 + 25 = 42</think><answer>42</answer>",
    item: {},
  },
  {
    name: "Correct and well-formed",
    grader: {
      type: "multi",
      name: "both",
      graders: {
        correct: { type: "numeric", name: "correct", reference: "{{item.answer}}" },
        format: { type: "format", name: "format", tags: ["answer"] },
      },
      calculate_output: "0.8 * correct + 0.2 * format",
    },
    sample: "<answer>42</answer>",
    item: ROW,
  },
  {
    name: "Similar text",
    grader: {
      type: "text_similarity", name: "similar", evaluation_metric: "rouge_l",
      input: "{{sample.output_text}}", reference: "{{item.answer}}",
    },
    sample: "The cat sat on the mat.",
    item: { answer: "A cat was sitting on the mat." },
  },
  {
    name: "Custom Python",
    grader: {
      type: "python",
      name: "short",
      source: 'def grade(sample, item):\n    """1 for an answer in at most ten words."""\n' +
        '    return 1.0 if len(sample["output_text"].split()) <= 10 else 0.0\n',
    },
    sample: "Forty-two.",
    item: {},
  },
];
