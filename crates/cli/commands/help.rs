//! `dtrain help`: a command as `--help` shows it, a page of the guide, or the keys of a name.
//!
//! The guide is part of the program, so that it fits the version that is installed.

use super::print;
use crate::arguments::{Arguments, Help, shown_command};
use crate::config::{Config, nearest};
use crate::error::CliError;
use console::style;

/// A page of the guide.
struct Topic {
    name: &'static str,
    about: &'static str,
    page: &'static str,
}

macro_rules! topics {
    ($($name:literal, $about:literal;)*) => {
        &[$(Topic {
            name: $name,
            about: $about,
            page: include_str!(concat!("../../../docs/guide/", $name, ".md")),
        }),*]
    };
}

/// In the order of the guide.
const TOPICS: &[Topic] = topics! {
    "install", "build it, and see what this machine has";
    "first-training", "commands, batch size, learning rate, resume, checkpoints";
    "data", "images, tables, arrays, text, tokens";
    "model", "the built-in ones, parameters from elsewhere, stages of your own";
    "pytorch", "`import dtrain`: your PyTorch model, with all promises";
    "use", "evaluate, predict, export to ONNX and PyTorch, train for longer";
    "devices", "ranks, GPUs, precision, where the time goes";
    "hosts", "several hosts, slow networks, clocks";
    "scripts", "`dtrain run` in place of torchrun";
    "watching", "`dtrain status`, Prometheus and Grafana, MLflow, Weights & Biases";
    "failures", "what you see when something fails, and what is promised then";
    "reference", "files, exit codes, events";
    "keys", "every key of the configuration";
};

/// Shows it.
///
/// *Errors*: nothing has this name; of kind usage. Standard output cannot be written.
pub fn run(arguments: &Help) -> Result<(), CliError> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => print(&overview()),
        [topic] if find(topic).is_some() => print(&page(find(topic).expect("just seen"))),
        // A section may have the name of a command or of a topic.
        ["keys", name] if Config::explains(name) => print(&Config::explanation(name)),
        words => match (command(words), words) {
            (Some(text), _) => print(&text),
            (None, [name]) if Config::explains(name) => print(&Config::explanation(name)),
            _ => Err(unknown(words)),
        },
    }
}

fn find(name: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.name == name)
}

fn overview() -> String {
    let mut text =
        format!("{}\n\n{}\n", shown_command().render_help(), style("Topics of `dtrain help`:").bold());
    for Topic { name, about, .. } in TOPICS {
        text += &format!("  {name:<16}{about}\n");
    }
    text + "  KEY             a key of the configuration, such as optimizer.lr; `keys optimizer` shows those of a section\n"
}

/// A page as a terminal shows it: headings stand out, and links to other pages name their topics.
fn page(topic: &Topic) -> String {
    let mut is_code = false;
    let mut text = String::new();
    for line in topic.page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        text += &match line.strip_prefix('#') {
            _ if is_code => format!("    {line}"),
            Some(heading) => style(heading.trim_start_matches('#').trim()).bold().to_string(),
            None => links_as_topics(line),
        };
        text.push('\n');
    }
    text
}

/// `[text](data.md#images)` as `text (dtrain help data)`; other links lose their targets.
fn links_as_topics(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, label, target, after)) = next_link(rest) {
        text += before;
        text += label;
        let name = target.split('#').next().unwrap_or_default().trim_end_matches(".md");
        if find(name).is_some() {
            text += &format!(" (`dtrain help {name}`)");
        }
        rest = after;
    }
    text + rest
}

/// What is before the next link of a line, its words, where it leads, and what is after it.
fn next_link(line: &str) -> Option<(&str, &str, &str, &str)> {
    let middle = line.find("](")?;
    let start = line[..middle].rfind('[')?;
    let end = middle + line[middle..].find(')')?;
    Some((&line[..start], &line[start + 1..middle], &line[middle + 2..end], &line[end + 1..]))
}

/// The help of a command, or of one below it, as `--help` shows it.
fn command(words: &[&str]) -> Option<String> {
    let mut command = &shown_command();
    for word in words {
        command = command.find_subcommand(word)?;
    }
    let line = ["dtrain"].iter().chain(words).chain(&["--help"]).map(Into::into);
    Arguments::from_words(line).err().map(|help| help.to_string())
}

fn unknown(words: &[&str]) -> CliError {
    let error = CliError::usage(format!("there is no command, topic or key called {}", words.join(" ")));
    let commands = shown_command();
    let names =
        commands.get_subcommands().map(clap::Command::get_name).chain(TOPICS.iter().map(|topic| topic.name));
    let names: Vec<&str> = names.collect();
    let near = words
        .first()
        .and_then(|word| nearest(word, names.iter().copied()).or_else(|| Config::nearest_key(word)));
    error.hint(match near {
        Some(name) => format!("did you mean `dtrain help {name}`?"),
        None => "`dtrain help` lists what there is".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_pages_become_topics_and_other_links_keep_their_words() {
        let line = "Next: [your data](data.md#csv), or [the code](../../crates) [1].";
        assert_eq!(links_as_topics(line), "Next: your data (`dtrain help data`), or the code [1].");
        assert_eq!(links_as_topics("[1] x](y"), "[1] x](y");
    }
}
