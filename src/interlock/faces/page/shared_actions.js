// What a person can do about what agents share, by kind of thing; `work_actions.js` explains the
// fields.

export const SHARED_ACTIONS = {
  lock: {
    release: {
      label: "Release",
      key: "u",
      operation: "lock break",
      when: (l) => Boolean(l.holder),
      ask: {
        text: "The grant of its holder ends at once, and its token is fenced. The first waiter gets the lock.",
        reason: "required",
        danger: true,
      },
      request: (l, said) => ({ lock: l.lock, reason: said.reason, ...(l.token ? { token: l.token } : {}) }),
      done: "is released",
    },
  },
  slots: {
    release: {
      label: "Release",
      key: "u",
      operation: "sem break",
      when: () => true,
      ask: {
        text: "The grant of this holder ends at once, and its token is fenced. Waiters that fit get the slots.",
        reason: "required",
        danger: true,
      },
      request: (s, said) => ({ semaphore: s.semaphore, reason: said.reason, token: s.token }),
      done: "lost its slots",
    },
  },
  semaphore: {
    resize: {
      label: "Resize",
      operation: "sem resize",
      when: () => true,
      single: true,
      ask: {
        text: "No holder loses a slot.",
        fields: (s) => [
          { name: "capacity", label: "Capacity", type: "number", value: String(s.capacity), required: true },
        ],
      },
      request: (s, said) => ({ semaphore: s.semaphore, capacity: Number(said.capacity) }),
      done: "has a new capacity",
      undo: (s) => ["sem resize", { semaphore: s.semaphore, capacity: s.capacity }],
    },
  },
  reservation: {
    release: {
      label: "Release",
      key: "u",
      operation: "unreserve",
      when: () => true,
      ask: {
        text: "The reservation ends at once, and its token is fenced. Waiters for these files are served.",
        reason: "required",
        danger: true,
      },
      request: (r, said) => ({
        patterns: r.patterns,
        holder: r.holder,
        reason: said.reason,
        ...(r.repository ? { repository: r.repository } : {}),
      }),
      done: "are released",
    },
  },
  quarantine: {
    release: {
      label: "Release",
      operation: "quarantine release",
      when: (q) => q.releasable,
      ask: { text: "It is treated as if it had been accepted: its task is published.", danger: true },
      request: (q) => ({ id: q.id }),
      done: "is released",
    },
    drop: {
      label: "Drop",
      operation: "quarantine drop",
      when: () => true,
      ask: { text: "It is deleted. This cannot be taken back.", danger: true },
      request: (q) => ({ ids: [q.id] }),
      done: "is dropped",
    },
  },
  merge: {
    cancel: {
      label: "Cancel",
      key: "c",
      operation: "merge cancel",
      when: (m) => ["waiting", "testing"].includes(m.state),
      ask: {
        text: "The branch leaves the queue and stays as it is; its author can submit it again.",
        reason: "required",
        danger: true,
      },
      request: (m, said) => ({ merge: m.merge, reason: said.reason }),
      done: "left the queue",
    },
  },
  schedule: {
    pause: {
      label: "Pause",
      key: "p",
      operation: "schedule pause",
      when: (s) => s.state === "active",
      ask: { text: "It publishes nothing until it is resumed. Open tasks stay.", reason: "required" },
      request: (s, said) => ({ schedule: s.schedule, reason: said.reason }),
      done: "is paused",
      undo: (s) => ["schedule resume", { schedule: s.schedule }],
    },
    resume: {
      label: "Resume",
      key: "p",
      operation: "schedule resume",
      when: (s) => s.state === "paused",
      request: (s) => ({ schedule: s.schedule }),
      done: "goes on",
    },
    drop: {
      label: "Drop",
      key: "d",
      operation: "schedule drop",
      when: () => true,
      ask: {
        text: "It is deleted; the tasks that it published stay. This cannot be taken back.",
        danger: true,
      },
      request: (s) => ({ schedule: s.schedule }),
      done: "is deleted",
    },
  },
  guard: {
    drop: {
      label: "Drop",
      key: "d",
      operation: "guard drop",
      when: () => true,
      ask: {
        text: "It is deleted. What waits for it waits until a guard of this name is defined again.",
        danger: true,
      },
      request: (g) => ({ guard: g.guard }),
      done: "is deleted",
    },
  },
  budget: {
    set: {
      label: "Limit",
      key: "e",
      operation: "budget set",
      when: () => true,
      single: true,
      ask: {
        text: "Above the limit, claims and edits are refused. Leave a field empty for no limit of its kind.",
        reason: "required",
        fields: (b) => [
          { name: "tokens", label: "Tokens of all kinds", type: "number", value: b.limit_tokens ?? "" },
          { name: "cost", label: "Money", value: b.limit_cost ?? "" },
        ],
      },
      request: (b, said) => ({
        thing: b.thing,
        reason: said.reason,
        ...(said.tokens ? { tokens: Number(said.tokens) } : {}),
        ...(said.cost ? { cost: said.cost } : {}),
      }),
      done: "has a new limit",
    },
    drop: {
      label: "No limit",
      key: "d",
      operation: "budget drop",
      when: (b) => b.limit_tokens !== null || b.limit_cost !== null,
      ask: { text: "The limit is deleted, and work goes on. The counts stay.", danger: true },
      request: (b) => ({ thing: b.thing }),
      done: "has no limit",
    },
  },
};
