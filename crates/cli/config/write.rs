//! A configuration as text: YAML with every key and its meaning, and the page of all keys.

use super::keys::{KEYS, Key, Mark, names};
use super::resolve::Resolved;

/// Comments start here unless the value is longer.
const COMMENT_COLUMN: usize = 38;

/// Every key that applies, with its value and what it means.
pub(super) fn yaml(resolved: &Resolved) -> String {
    let mut text = String::new();
    let mut section = None;
    for (key, value) in resolved.iter() {
        if key.section() != section {
            section = key.section();
            if let Some(section) = section {
                text.push_str(&format!("{section}:\n"));
            }
        }
        let name = key.name.rsplit('.').next().expect("a name has a last part");
        let indent = if section.is_some() { "  " } else { "" };
        let line = format!("{indent}{name}: {value}");
        let pad = COMMENT_COLUMN.saturating_sub(line.chars().count() + 1);
        text.push_str(&format!("{line}{} # {}\n", " ".repeat(pad), key.help));
    }
    text
}

/// The table as Markdown.
pub(super) fn reference() -> String {
    let mut text = String::from("| key | default | mark | accepts | meaning |\n|---|---|---|---|---|\n");
    for name in names() {
        let rows: Vec<_> = KEYS.iter().filter(|key| key.name == name).collect();
        let first = rows[0];
        let default = |row: &Key| row.default.map_or("(needed)".to_owned(), |text| format!("`{text}`"));
        let defaults = by_condition(&rows, default);
        let mark = |row: &Key| match row.mark {
            Mark::Bits => "bits".to_owned(),
            Mark::Free => "free".to_owned(),
        };
        let mark = by_condition(&rows, mark);
        let only = match first.when {
            Some((other, words)) if rows.len() == 1 => format!(" ({other}: {})", words.join(", ")),
            _ => String::new(),
        };
        let accepts = first.accepts.expected().replace('|', "\\|");
        let help = first.help.replace('|', "\\|");
        text.push_str(&format!("| `{name}` | {defaults} | {mark} | {accepts} | {help}{only} |\n"));
    }
    text
}

/// What the rows of one name say: once where they agree, else with the condition of each.
fn by_condition(rows: &[&Key], says: impl Fn(&Key) -> String) -> String {
    let first = says(rows[0]);
    let agree = rows.iter().all(|row| says(row) == first);
    let of_kind = |row: &&Key| {
        let (_, words) = row.when.expect("rows of one name differ in their condition");
        format!("{} for {}", says(row), words.join(", "))
    };
    if agree { first } else { rows.iter().map(of_kind).collect::<Vec<_>>().join("; ") }
}
