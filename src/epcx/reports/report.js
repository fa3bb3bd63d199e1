// Replays are made when they come into view; those of a pair start together.
{
  const pairs = JSON.parse(document.getElementById("replays-data").textContent);
  const places = [...document.querySelectorAll(".pair")];
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

  function fill(place) {
    if (place.players) return;
    const replays = pairs[places.indexOf(place)];
    place.players = [...place.querySelectorAll(".player")].map((box, i) =>
      createReplay(box, replays[i], { autoplay: false })
    );
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) fill(target);
      for (const player of target.players ?? []) {
        if (isIntersecting && !still) player.play();
        else player.pause();
      }
    }
  }, { rootMargin: "120px" });
  for (const place of places) watcher.observe(place);
}
