//! A configuration as text: YAML with every key and its meaning, and the page of all keys.

use super::keys::{KEYS, Mark, names};
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
        let default =
            |default: Option<&str>| default.map_or("(needed)".to_owned(), |text| format!("`{text}`"));
        let defaults = match rows.as_slice() {
            [one] => default(one.default),
            several => {
                let of_kind = |row: &&super::keys::Key| {
                    let (_, words) = row.when.expect("rows of one name differ in their condition");
                    format!("{} for {}", default(row.default), words.join(", "))
                };
                several.iter().map(of_kind).collect::<Vec<_>>().join("; ")
            }
        };
        let mark = match first.mark {
            Mark::Bits => "bits",
            Mark::Free => "free",
        };
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
