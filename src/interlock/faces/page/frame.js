// Paints at most once a frame: modules name what changed, and one pass repaints it.

const waiting = new Map();
let asked = false;

/** Call `paint` in the next frame; a second call under the same name replaces the first. */
export function nextFrame(name, paint) {
  waiting.set(name, paint);
  if (asked) return;
  asked = true;
  // A hidden tab gets no frames, and its title still has to count what needs a person.
  if (document.hidden) setTimeout(flush, 250);
  else requestAnimationFrame(flush);
}

function flush() {
  asked = false;
  const paints = [...waiting.values()];
  waiting.clear();
  for (const paint of paints) {
    try {
      paint();
    } catch (error) {
      reportError(error); // the others are painted all the same
    }
  }
}
