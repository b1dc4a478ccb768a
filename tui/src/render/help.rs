//! Every key.

use super::{Page, first_shown};
use crate::app::{App, View};
use crate::rows;
use crate::text::{clip, ink, left, plain};
use crate::theme::Theme;
use ratatui::style::Style;
use ratatui::text::Line;

pub(super) fn page(app: &App, theme: &Theme, width: usize, height: usize) -> Page {
    let rows = rows::commands(app);
    let mut page = Page::default();
    page.push(ink("KEYS              COMMAND        WHAT IT DOES", theme.dim()));
    if rows.is_empty() {
        page.push(plain(format!("  nothing matches /{}", theme.clean(app.filter()))));
        return page;
    }
    let cursor = app.line_at[View::Help as usize].min(rows.len() - 1);
    let capacity = height.saturating_sub(1).max(1);
    let first = first_shown(rows.len(), cursor, capacity);
    for (place, entry) in rows.iter().enumerate().skip(first).take(capacity) {
        let keys: Vec<String> = entry.keys.iter().map(ToString::to_string).collect();
        let name = left(entry.name, 15, theme);
        page.row(
            Line::from(vec![
                ink(left(&keys.join(" "), 18, theme), theme.bold()),
                ink(name, if place == cursor { theme.chosen() } else { Style::new() }),
                plain(clip(entry.help, width.saturating_sub(33), theme)),
            ]),
            place,
        );
    }
    page.page = capacity;
    page
}
