//! Charts as SVG: positions across are shares of the width, so that a chart fits any page and its text keeps its
//! size; positions down are CSS pixels.

use super::fill::Fill;
use std::fmt::Write;

/// How far a column goes under its neighbour, as a share of the width: between two that only touch, the ground may
/// shine through.
pub(super) const COVERED: f64 = 0.001;

/// A chart under construction. All text is escaped here, wherever it comes from.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

/// Where a text is tied to its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// `id` is unique on the page; screen readers read `title` and `desc` out.
    pub(super) fn new(id: &str, height_px: f64, title: &str, desc: &str) -> Svg {
        let mut text = String::new();
        let height = px(height_px);
        let _ = write!(
            text,
            "<svg class=\"plot\" role=\"img\" width=\"100%\" height=\"{height}\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            escape(title),
            escape(desc)
        );
        Svg { text }
    }

    /// A filled rectangle, with a text that shows while the pointer is on it.
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: Fill, hint: &str) {
        let _ = write!(self.text, "<rect{} {}", place(x, y, width, height), fill.attribute());
        self.close("rect", hint);
    }

    /// The same without a colour of its own: the style sheet names one for `class`.
    pub(super) fn plain_rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str, hint: &str) {
        let _ = write!(self.text, "<rect{} class=\"{class}\"", place(x, y, width, height));
        self.close("rect", hint);
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = write!(
            self.text,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"/>",
            percent(from.0),
            px(from.1),
            percent(to.0),
            px(to.1)
        );
    }

    /// A point, with a text that shows while the pointer is on it.
    pub(super) fn dot(&mut self, x: f64, y: f64, radius_px: f64, class: &str, hint: &str) {
        let (x, y, radius) = (percent(x), px(y), px(radius_px));
        let _ = write!(self.text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\"");
        self.close("circle", hint);
    }

    /// `y` is the base line; `aside_px` moves the text from `x`, to the right when positive.
    pub(super) fn text(&mut self, x: f64, aside_px: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let aside = if aside_px == 0.0 { String::new() } else { format!(" dx=\"{}\"", px(aside_px)) };
        let _ = write!(
            self.text,
            "<text x=\"{}\" y=\"{}\"{aside}{anchor} class=\"{class}\">{}</text>",
            percent(x),
            px(y),
            escape(text)
        );
    }

    /// The element.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }

    fn close(&mut self, element: &str, hint: &str) {
        match hint {
            "" => self.text.push_str("/>"),
            hint => drop(write!(self.text, "><title>{}</title></{element}>", escape(hint))),
        }
    }
}

fn place(x: f64, y: f64, width: f64, height: f64) -> String {
    let (x, width) = (percent(x), percent(width.max(0.0)));
    format!(" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{}\"", px(y), px(height))
}

/// A share of the width. Figures come from files: what is far outside is held at the edge.
fn percent(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(-1.0, 2.0) } else { 0.0 };
    format!("{}%", rounded(share * 100.0, 3))
}

fn px(value: f64) -> String {
    rounded(value, 1)
}

/// As few digits as the value needs.
fn rounded(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A foreign text as it can stand between tags or in an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_stay_in_range() {
        assert_eq!([percent(0.5), percent(1.0 / 3.0), percent(0.0)], ["50%", "33.333%", "0%"]);
        assert_eq!([percent(f64::NAN), percent(f64::INFINITY), percent(1e300)], ["0%", "0%", "200%"]);
        assert_eq!([px(10.0), px(10.25), px(-100.0)], ["10", "10.2", "-100"]);
    }

    #[test]
    fn text_ends_nothing() {
        let mut svg = Svg::new("x", 10.0, "</title><script>", "\"'&");
        svg.text(0.0, 0.0, 0.0, Anchor::Start, "label", "]]></text>");
        let text = svg.finish();
        assert!(!text.contains("<script") && !text.contains("]]></text"), "{text}");
        assert!(text.contains("&lt;/title&gt;"), "{text}");
    }
}
