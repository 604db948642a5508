//! How pictures look: sizes, colours, text, and the last touches to the SVG.
//!
//! Rule: drawn at twice the size at which it is shown, because the drawing library places points on whole pixels;
//! text stays text, in the reader's own sans-serif font.

use plotters::prelude::*;

/// Pixels drawn for one shown.
pub const SCALE: u32 = 2;

pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
pub const GRID: RGBColor = RGBColor(0xE4, 0xE4, 0xE4);

/// Colours that are told apart in print and by people who see few colours (Okabe and Ito).
pub const DISTINCT: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x5A, 0x5A, 0x5A),
];

/// The library writes sizes divided by this.
pub const FONT_UNIT: f64 = 1.24;

/// Text of this size, pixels shown.
pub fn font(size: u32, color: &'static RGBColor) -> TextStyle<'static> {
    let size = f64::from(size * SCALE) * FONT_UNIT;
    TextStyle::from(("sans-serif", size).into_font()).color(color)
}

/// The picture at the size at which it is shown, with a title for those who cannot see it. `size`: pixels drawn.
pub fn shown(text: &str, (width, height): (u32, u32), title: &str) -> String {
    let drawn = format!(r#"<svg width="{width}" height="{height}""#);
    let shown = format!(r#"<svg width="{}" height="{}" role="img""#, width / SCALE, height / SCALE);
    text.replacen(&drawn, &shown, 1).replacen(">\n", &format!(">\n<title>{}</title>\n", escape(title)), 1)
}

/// Text as XML and HTML hold it, between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Without the control characters that XML cannot hold.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{FFFE}' | '\u{FFFF}')).collect()
}

/// A number without the digits that say nothing.
#[allow(clippy::ptr_arg, reason = "the library's signature")]
pub fn label(value: &f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        assert_eq!([0.0, -0.0, 2.5, 600.0, 0.125].map(|v| label(&v)), ["0", "0", "2.5", "600", "0.125"]);
    }

    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(escape("a<b>\"&\u{0}"), "a&lt;b&gt;&quot;&amp;");
    }
}
