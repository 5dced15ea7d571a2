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

/// What is told of a key.
struct Told {
    name: &'static str,
    default: String,
    mark: String,
    accepts: String,
    meaning: String,
}

impl Told {
    /// All keys, in the order of the table.
    fn all() -> impl Iterator<Item = Self> {
        names().map(|name| Self::of(name, &KEYS.iter().filter(|key| key.name == name).collect::<Vec<_>>()))
    }

    fn of(name: &'static str, rows: &[&Key]) -> Self {
        let default = |row: &Key| row.default.map_or("(needed)".to_owned(), |text| format!("`{text}`"));
        let mark = |row: &Key| match row.mark {
            Mark::Bits => "bits".to_owned(),
            Mark::Free => "free".to_owned(),
        };
        let first = rows[0];
        let only = match first.when {
            Some((other, words)) if rows.len() == 1 => format!(" ({other}: {})", words.join(", ")),
            _ => String::new(),
        };
        Self {
            name,
            default: by_condition(rows, default),
            mark: by_condition(rows, mark),
            accepts: first.accepts.expected(),
            meaning: format!("{}{only}", first.help),
        }
    }
}

/// The table as Markdown.
pub(super) fn reference() -> String {
    let mut text = String::from("| key | default | mark | accepts | meaning |\n|---|---|---|---|---|\n");
    for Told { name, default, mark, accepts, meaning } in Told::all() {
        let [accepts, meaning] = [accepts, meaning].map(|text| text.replace('|', "\\|"));
        text.push_str(&format!("| `{name}` | {default} | {mark} | {accepts} | {meaning} |\n"));
    }
    text
}

/// Whether a key has this name, or is in the section of this name.
pub(super) fn is_or_below(key: &str, name: &str) -> bool {
    key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The key of this name, or all of a section, as a terminal shows them.
pub(super) fn explanation(name: &str) -> String {
    let mut text = String::new();
    for Told { name, default, mark, accepts, meaning } in
        Told::all().filter(|told| is_or_below(told.name, name))
    {
        text.push_str(&format!("{name}: {meaning}\n  default {default}; takes {accepts}; mark {mark}\n"));
    }
    text.push_str("\nmark bits: another value gives another result; mark free: the result stays the same, bit for bit.\n");
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
