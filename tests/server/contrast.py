"""Whether text can be read, as a script for the page."""

# Contrast as WCAG 2 defines it, of the first element of a selector with what lies behind it.
CONTRAST = """selector => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (behind && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const colours = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
  const pair = colours.map(light).sort((a, b) => a - b);
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}"""
