// The views, in the order of their keys.

import { now } from "./views/now.js";
import { agents } from "./views/agents.js";
import { tasks } from "./views/tasks.js";
import { locks } from "./views/locks.js";
import { messages } from "./views/messages.js";
import { pipelines } from "./views/pipelines.js";
import { swarms } from "./views/swarms.js";
import { record } from "./views/record.js";
import { timeline } from "./views/timeline.js";

export const VIEWS = [now, agents, tasks, locks, messages, pipelines, swarms, record, timeline];
