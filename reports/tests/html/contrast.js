(() => {
  const channels = text => text.match(/[\d.]+/g).map(Number);
  const linear = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ground = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of document.body.querySelectorAll('*')) {
    const own = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim() !== '');
    if (!own || element.closest('script, title, desc') || element.getClientRects().length === 0) continue;
    const style = getComputedStyle(element);
    let behind = ground(element);
    // The name of a phase stands on the strip that was drawn before it.
    const strip = element.classList.contains('phase-name') && element.previousElementSibling;
    if (strip) behind = channels(getComputedStyle(strip).fill);
    const [one, other] = [channels(element instanceof SVGElement ? style.fill : style.color), behind].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) pale.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return pale;
})()
