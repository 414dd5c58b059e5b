// How a completion ended. The engine records `length` for a failed session, which no limit has ended.

const ENDS = { stop: "Stop token", length: "Max tokens" };

export const isTruncated = (one) => one.finish_reason === "length" && !one.episode?.failure;

export const endOf = (one) => (one.episode?.failure ? "Session failed" : (ENDS[one.finish_reason] ?? one.finish_reason));
