//! What the pages say is what the program does: the page of keys, the configurations shown, the links, the answers to where
//! things are, the list of outside crates; and pages that grow out of hand.
//!
//! `DTRAIN_RENEW_DOCS=1 cargo test --test all docs_current` writes the page of keys anew.

use dtrain::config::{Config, Machine, Source};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The page of keys up to its table.
const CONFIG_HEAD: &str = "\
# Every key of a configuration

Written by `DTRAIN_RENEW_DOCS=1 cargo test --test all docs_current`; do not edit. `dtrain train --print-config` writes the same as
YAML, with the values in use.

A key is set on the command line (`optimizer.lr=1e-3`) or in a file (`optimizer: {lr: 1.0e-3}`). A `bits` key changes the
result, so it may not change at a resume; a `free` key may. A default that depends on another key names its values.

";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below `folder` with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|end| end == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn pages() -> Vec<PathBuf> {
    let top = ["README.md", "CHANGELOG.md"].map(|name| root().join(name));
    let below = ["docs", "bench"].map(|folder| files(&root().join(folder), "md"));
    top.into_iter().chain(below.into_iter().flatten()).collect()
}

/// The fenced blocks of one language.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    parts.map(|part| part.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// The configurations to start from.
pub fn yaml_files() -> Vec<PathBuf> {
    files(&root().join("examples"), "yaml")
}

fn reads(text: &str) -> Result<Config, String> {
    let source = Source { path: "shown.yaml".into(), text: text.to_owned() };
    Config::parse::<&str>(Some(source), &[], Machine { cores: 2, gpus: |_, _| 0 })
        .map_err(|error| error.to_string())
}

#[test]
fn the_page_of_keys_is_the_table_of_keys() {
    let path = root().join("docs/guide/keys.md");
    let wanted = CONFIG_HEAD.to_owned() + &Config::reference();
    if std::env::var_os("DTRAIN_RENEW_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let renew = "renew it with DTRAIN_RENEW_DOCS=1 cargo test --test all docs_current";
    assert!(read(&path) == wanted, "docs/guide/keys.md is not what `Config::reference` says: {renew}");
}

#[test]
fn every_configuration_that_is_shown_can_be_read() {
    let mut shown = 0;
    for page in pages() {
        for block in blocks(&read(&page), "yaml") {
            shown += 1;
            reads(&block).unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()));
        }
    }
    assert!(shown >= 12, "only {shown} configurations were found in the pages");
    for example in yaml_files() {
        reads(&read(&example)).unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    }
    assert!(reads("data: {kind: csv, pth: x}").is_err(), "a wrong configuration is refused");
}

#[test]
fn the_guide_shows_the_example_that_is_built() {
    let shown = blocks(&read(&root().join("docs/guide/model.md")), "rust");
    let example = read(&root().join("examples/own_model.rs"));
    assert!(shown == [example.clone()], "docs/guide/model.md does not show examples/own_model.rs as it is");
    let lines = example.lines().count();
    assert!(lines <= 80, "the example has {lines} lines: it is to fit a screen or two");
}

/// What a page links to, except other sites and places in itself.
fn links(page: &str) -> BTreeSet<String> {
    let outside = |link: &&str| link.starts_with("http") || link.starts_with('#');
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let images = page.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let all = targets.chain(images).filter(|link| !outside(link));
    all.map(|link| link.split('#').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut followed = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            followed += 1;
            let target = page.parent().unwrap().join(&link);
            assert!(target.exists(), "{} links to {link}, which is not there", page.display());
        }
    }
    assert!(followed >= 30, "only {followed} links were found");
    let found = links("[a](b.md#c) [d](https://e) [f](#g) <img src=\"h.svg\">");
    assert_eq!(found, BTreeSet::from(["b.md".to_owned(), "h.svg".to_owned()]));
}

/// The files that answer the where-questions of the map: a line each, with the question before the first link.
fn where_answers(page: &str) -> Vec<(&str, BTreeSet<String>)> {
    let section = page.split("\n## Where is it?\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let questions = section.lines().filter_map(|line| line.strip_prefix("- **"));
    questions.map(|line| (line.split("**").next().unwrap_or_default(), links(line))).collect()
}

#[test]
fn the_map_answers_where_things_are_with_files_that_are_there() {
    let map = root().join("docs/design/ARCHITECTURE.md");
    let page = read(&map);
    let answers = where_answers(&page);
    assert!(answers.len() >= 10, "only {} questions were found", answers.len());
    for (question, files) in answers {
        assert!(question.ends_with('?'), "{question} is no question");
        assert!(!files.is_empty(), "{question} has no answer");
        for file in files {
            let target = map.parent().unwrap().join(&file);
            assert!(target.is_file(), "{question} {file} is not there");
            assert!(file.ends_with(".rs"), "{question} {file} is no source");
        }
    }
}

#[test]
fn pages_stay_short() {
    let lines = |page: &str| read(&root().join(page)).lines().count();
    assert!(lines("README.md") <= 120, "the README has {} lines", lines("README.md"));
    for record in files(&root().join("docs/design/decisions"), "md") {
        let name = record.file_name().unwrap().to_str().unwrap();
        let count = read(&record).lines().count();
        // The others are lists.
        assert!(
            !name.starts_with("00") || count <= 40,
            "{name} has {count} lines: a record fits on a screen"
        );
    }
    let glossary = read(&root().join("docs/design/GLOSSARY.md"));
    let words = glossary.lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert!(words <= 40, "the glossary has {words} words");
}

/// The code that a page names by its path from the root.
fn named_paths(page: &str) -> BTreeSet<String> {
    let spans = page.split('`').skip(1).step_by(2);
    let is_path = |span: &&str| {
        ["crates/", "tests/", "docs/", "examples/", "bench/"].iter().any(|folder| span.starts_with(folder))
            && !span.contains([' ', '*', '{', '\n'])
    };
    spans.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn every_file_that_a_page_names_is_there() {
    let mut named = 0;
    for page in pages() {
        for path in named_paths(&read(&page)) {
            named += 1;
            assert!(root().join(&path).exists(), "{} names {path}, which is not there", page.display());
        }
    }
    assert!(named >= 20, "only {named} paths were found");
}

/// The names in the first column of a table of crates.
fn first_column(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// The outside crates that a manifest asks for.
fn outside_crates(manifest: &str) -> BTreeSet<&str> {
    let lines = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default().lines();
    let section = lines.take_while(|line| !line.starts_with('['));
    // What has a path is our own.
    let outside = section.filter(|line| !line.contains("{ path = "));
    outside.filter_map(|line| line.split([' ', '.', '=']).next()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_outside_crate_has_a_line_that_says_what_it_saves() {
    let (manifest, page) =
        (read(&root().join("Cargo.toml")), read(&root().join("docs/design/decisions/dependencies.md")));
    let (asked, described) = (outside_crates(&manifest), first_column(&page));
    assert!(asked.len() > 10, "only {asked:?} were found in Cargo.toml");
    assert_eq!(
        asked, described,
        "Cargo.toml on the left, docs/design/decisions/dependencies.md on the right"
    );
}
