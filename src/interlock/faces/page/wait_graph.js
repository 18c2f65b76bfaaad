// Who waits for whom: edges from the queues of locks and semaphores and from open questions, and the
// cycles among them.  A cycle in the queues lasts until its youngest wait is refused.

/** Edges {from, to, thing}: `from` waits for `thing`, which `to` has. */
export function waits({ locks = [], semaphores = [], questions = [] }) {
  const edges = [];
  for (const lock of locks)
    for (const waiter of lock.waiters)
      edges.push({ from: waiter, to: lock.holder, thing: `lock/${lock.lock}` });
  for (const each of semaphores) {
    for (const waiter of each.waiters)
      for (const holder of each.holders)
        edges.push({ from: waiter.agent, to: holder.holder, thing: `sem/${each.semaphore}` });
  }
  for (const each of questions)
    for (const to of each.to)
      if (!to.startsWith("?")) edges.push({ from: each.from, to, thing: `query/${each.id}` });
  return edges.filter((each) => each.to && each.from !== each.to);
}

/** Each cycle as a list of edges, shortest first; a cycle is found once. */
export function cycles(edges) {
  const out = new Map();
  for (const edge of edges) out.set(edge.from, [...(out.get(edge.from) || []), edge]);
  const found = new Map();
  for (const start of [...out.keys()].sort()) {
    const ring = shortest(start, out);
    if (ring)
      found.set(
        ring
          .map((each) => each.from)
          .sort()
          .join("\u0001"),
        ring,
      );
  }
  return [...found.values()].sort((a, b) => a.length - b.length);
}

/** The shortest way from an agent back to itself. */
function shortest(start, out) {
  const seen = new Set();
  let ways = (out.get(start) || []).map((edge) => [edge]);
  while (ways.length) {
    const next = [];
    for (const way of ways) {
      const last = way[way.length - 1].to;
      if (last === start) return way;
      if (seen.has(last)) continue;
      seen.add(last);
      for (const edge of out.get(last) || []) next.push([...way, edge]);
    }
    ways = next;
  }
  return null;
}

/** For each agent that blocks others, whom: {agent -> Map(waiter -> thing)}, the worst first. */
export function blockers(edges) {
  const found = new Map();
  for (const { from, to, thing } of edges) found.set(to, (found.get(to) || new Map()).set(from, thing));
  return [...found].sort((a, b) => b[1].size - a[1].size);
}
