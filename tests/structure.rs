//! No circles: inside a crate no two files use each other, directly or around a corner.
//!
//! File A uses file B if A names an item that is defined in B: by `use`, or by a path. Re-exports are followed to the file that
//! defines the item; `mod` lines and re-exports are no uses, nor is anything inside a test module. A file that is in a circle cannot be
//! understood alone; most often a constant or a small type lies in the wrong one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Circles that stay, each with its reason: the files that are in it.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[(
    "fake-cuda",
    &["event", "graph", "memory", "module", "stream", "world"],
    "a stand-in for a driver whose objects hold each other: a stream has its events, an event its stream",
)];

/// Parameters that are a bare `bool`, each with its reason: crate, function, parameter.
const FLAGS: &[(&str, &str, &str, &str)] = &[
    (
        "cli",
        "new",
        "held",
        "a promise of a drill: what was looked at and found to hold or not, as in `assert!`",
    ),
    ("engine", "demand", "holds", "the condition itself, as in `assert!`"),
    ("fake-cublaslt", "demand", "holds", "the condition itself, as in `assert!`"),
    ("fake-cudnn", "demand", "holds", "the condition itself, as in `assert!`"),
    ("fake-cuda", "ok_if", "holds", "the condition itself, as in `assert!`"),
    ("transport", "on_ack", "app_limited", "a trait of quinn"),
    ("transport", "on_congestion_event", "is_persistent", "a trait of quinn"),
    ("transport", "on_end_acks", "app_limited", "a trait of quinn"),
];

/// The name of a module: its path in the crate.
type Module = Vec<String>;

/// What a file says: its items, its re-exports by name, and the paths that it uses.
#[derive(Debug, Default)]
struct File {
    items: BTreeSet<String>,
    /// The name under which a path is known here: re-exports and plain imports.
    exports: BTreeMap<String, Vec<String>>,
    imports: BTreeMap<String, Vec<String>>,
    /// Re-exports of everything in a module.
    globs: Vec<Vec<String>>,
    uses: BTreeSet<Vec<String>>,
}

/// A crate's files by their modules.
type Crate = BTreeMap<Module, File>;

/// The words and signs of a source, without comments, strings and test modules.
fn tokens(source: &str) -> Vec<String> {
    let bytes: Vec<char> = source.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (c, next) = (bytes[at], bytes.get(at + 1).copied().unwrap_or(' '));
        if c == '/' && next == '/' {
            while at < bytes.len() && bytes[at] != '\n' {
                at += 1;
            }
        } else if c == '/' && next == '*' {
            let end = (at..bytes.len()).find(|i| bytes[*i..].starts_with(&['*', '/']));
            at = end.map_or(bytes.len(), |end| end + 2);
        } else if c == 'r' && (next == '"' || next == '#') && raw_string(&bytes[at..]).is_some() {
            at += raw_string(&bytes[at..]).expect("just seen");
        } else if c == '"' {
            at += 1;
            while at < bytes.len() && bytes[at] != '"' {
                at += 1 + usize::from(bytes[at] == '\\');
            }
            at += 1;
        } else if c == '\'' && (next == '\\' || bytes.get(at + 2) == Some(&'\'')) {
            at += 2;
            while at < bytes.len() && bytes[at] != '\'' {
                at += 1;
            }
            at += 1;
        } else if c.is_alphanumeric() || c == '_' {
            let end = (at..bytes.len()).find(|i| !(bytes[*i].is_alphanumeric() || bytes[*i] == '_'));
            let end = end.unwrap_or(bytes.len());
            found.push(bytes[at..end].iter().collect());
            at = end;
        } else if c == ':' && next == ':' {
            found.push("::".to_owned());
            at += 2;
        } else {
            if !c.is_whitespace() {
                found.push(c.to_string());
            }
            at += 1;
        }
    }
    without_tests(found)
}

/// The length of a raw string that begins here.
fn raw_string(from: &[char]) -> Option<usize> {
    let hashes = from[1..].iter().take_while(|c| **c == '#').count();
    (from.get(1 + hashes) == Some(&'"')).then_some(())?;
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let start = 2 + hashes;
    (start..from.len()).find(|i| from[*i..].starts_with(&end)).map(|at| at + end.len())
}

/// Leaves out every item behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if !tokens[at..].iter().map(String::as_str).take(MARK.len()).eq(MARK) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let mut depth = 0;
        while at < tokens.len() {
            depth += match tokens[at].as_str() {
                "{" => 1,
                "}" => -1,
                _ => 0,
            };
            at += 1;
            if depth == 0 && matches!(tokens[at - 1].as_str(), "}" | ";") {
                break;
            }
        }
    }
    kept
}

const DEFINES: [&str; 8] = ["struct", "enum", "trait", "fn", "type", "const", "static", "union"];

impl File {
    fn read(source: &str) -> Self {
        let tokens = tokens(source);
        let mut file = Self::default();
        let (mut depth, mut at) = (0, 0);
        let word = |at: usize| tokens.get(at).map_or("", String::as_str);
        while at < tokens.len() {
            match word(at) {
                "{" => depth += 1,
                "}" => depth -= 1,
                "use" => {
                    let exported = at > 0 && matches!(word(at - 1), "pub" | ")");
                    let end = (at..tokens.len()).find(|i| word(*i) == ";").unwrap_or(tokens.len());
                    file.take_use(&tokens[at + 1..end], exported && depth == 0);
                    at = end;
                }
                "mod" => at += 1,
                defines if depth == 0 && DEFINES.contains(&defines) => {
                    // `const fn`: the name follows the last of the words.
                    let name = word(at + 1);
                    if !DEFINES.contains(&name) && name != "unsafe" && name != "extern" {
                        file.items.insert(name.to_owned());
                    }
                }
                _ if word(at + 1) == "::" && (at == 0 || word(at - 1) != "::") => {
                    let mut path = vec![word(at).to_owned()];
                    while word(at + 1) == "::"
                        && word(at + 2).starts_with(|c: char| c.is_alphabetic() || c == '_')
                    {
                        path.push(word(at + 2).to_owned());
                        at += 2;
                    }
                    file.uses.insert(path);
                }
                _ => {}
            }
            at += 1;
        }
        file
    }

    /// Takes in a `use`: `a::b::{c, d::e as f, g::*}`.
    fn take_use(&mut self, tokens: &[String], exported: bool) {
        for (path, name) in expand(tokens) {
            match (name.as_str(), exported) {
                ("*", true) => self.globs.push(path),
                ("*", false) => {}
                (_, true) => drop(self.exports.insert(name, path)),
                (_, false) => {
                    self.uses.insert(path.clone());
                    self.imports.insert(name, path);
                }
            }
        }
    }
}

/// Every path of a `use`, with the name that it has here.
fn expand(tokens: &[String]) -> Vec<(Vec<String>, String)> {
    let mut prefix: Vec<String> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => {}
            "{" => {
                let inner = &tokens[at + 1..tokens.len() - 1];
                let (mut depth, mut start, mut all) = (0, 0, Vec::new());
                for (i, token) in inner.iter().map(String::as_str).chain([","]).enumerate() {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    if token == "," && depth == 0 {
                        all.extend(expand(&inner[start..i]));
                        start = i + 1;
                    }
                }
                let whole = |(path, name): (Vec<String>, String)| {
                    let path: Vec<String> = prefix.iter().cloned().chain(path).collect();
                    // `a::{self}` is `a`.
                    match path.last().map(String::as_str) {
                        Some("self") if path.len() > 1 => {
                            let path = path[..path.len() - 1].to_vec();
                            let name = if name == "self" { path[path.len() - 1].clone() } else { name };
                            (path, name)
                        }
                        _ => (path, name),
                    }
                };
                return all.into_iter().map(whole).collect();
            }
            "as" => return vec![(prefix, tokens[at + 1].clone())],
            "*" => return vec![(prefix, "*".to_owned())],
            word => prefix.push(word.to_owned()),
        }
        at += 1;
    }
    let Some(name) = prefix.last().cloned() else { return Vec::new() };
    vec![(prefix, name)]
}

/// The file that defines what `path` names, seen from `module`; none for what is of other crates.
fn resolve(all: &Crate, module: &Module, path: &[String], depth: usize) -> Option<Module> {
    let (mut at, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (module[..module.len().checked_sub(1)?].to_vec(), &path[1..]),
        first => {
            let file = &all[module];
            let child: Module = module.iter().cloned().chain([first.to_owned()]).collect();
            if let Some(known) = file.imports.get(first).or(file.exports.get(first)).filter(|_| depth < 9) {
                let whole: Vec<String> = known.iter().chain(&path[1..]).cloned().collect();
                return (whole != path).then(|| resolve(all, module, &whole, depth + 1)).flatten();
            }
            return all.contains_key(&child).then(|| resolve_in(all, child, &path[1..], depth)).flatten();
        }
    };
    while rest.first().is_some_and(|word| word == "super") {
        at.pop()?;
        rest = &rest[1..];
    }
    resolve_in(all, at, rest, depth)
}

fn resolve_in(all: &Crate, mut module: Module, mut path: &[String], depth: usize) -> Option<Module> {
    if depth > 9 {
        return None;
    }
    while let Some(word) = path.first() {
        module.push(word.clone());
        if !all.contains_key(&module) {
            module.pop();
            break;
        }
        path = &path[1..];
    }
    let (file, name) = (all.get(&module)?, path.first()?);
    if file.items.contains(name) {
        return Some(module);
    }
    if let Some(known) = file.exports.get(name).or(file.imports.get(name)) {
        let whole: Vec<String> = known.iter().chain(&path[1..]).cloned().collect();
        return resolve(all, &module, &whole, depth + 1);
    }
    file.globs.iter().find_map(|glob| {
        let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
        resolve(all, &module, &whole, depth + 1)
    })
}

/// Which file uses which, and by what.
fn edges(all: &Crate) -> BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> {
    let mut found: BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> = BTreeMap::new();
    for (module, file) in all {
        for path in &file.uses {
            if let Some(to) = resolve(all, module, path, 0).filter(|to| to != module) {
                let name = path.last().expect("a path has a word").clone();
                found.entry(module.clone()).or_default().entry(to).or_default().insert(name);
            }
        }
    }
    found
}

/// The files that can be reached from each other, where they are several; each with what it uses of the others.
fn circles(all: &Crate) -> Vec<Vec<(Module, String)>> {
    let edges = edges(all);
    let reached = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = open.pop() {
            for next in edges.get(&module).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        all.keys().map(|module| (module, reached(module))).collect();
    let (mut found, mut placed) = (Vec::new(), BTreeSet::new());
    for module in all.keys() {
        let together: Vec<&Module> = all
            .keys()
            .filter(|other| reach[module].contains(*other) && reach[*other].contains(module))
            .collect();
        if together.len() < 2 || !placed.insert(together[0].clone()) {
            continue;
        }
        let words = |of: &&Module| {
            let uses = edges[*of].iter().filter(|(to, _)| together.contains(to));
            let uses = uses.map(|(to, names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{} of {}", names.join(", "), to.join("::"))
            });
            ((*of).clone(), uses.collect::<Vec<String>>().join("; "))
        };
        found.push(together.iter().map(words).collect());
    }
    found
}

/// Reads the files of a crate below `folder`.
fn read(folder: &Path) -> Crate {
    sources(folder).into_iter().map(|(module, source)| (module, File::read(&source))).collect()
}

/// The texts of a crate's files, by module.
fn sources(folder: &Path) -> BTreeMap<Module, String> {
    let mut all = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in
            fs::read_dir(&at).expect("a folder of sources").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                open.push(entry);
                continue;
            }
            if entry.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let inside = entry.strip_prefix(folder).expect("it lies there").with_extension("");
            let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
                module.pop();
            }
            // A program's own file is nobody's module, and tests in files of their own are no part of the crate.
            if module == ["main"] || module.last().is_some_and(|last| last.ends_with("tests")) {
                continue;
            }
            let source = fs::read_to_string(&entry).expect("a source is text");
            all.insert(module, source);
        }
    }
    all
}

fn crates() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(root.join("crates"))
        .expect("the crates")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let source = path.join("src");
            (name, if source.is_dir() { source } else { path })
        })
        .collect();
    found.push(("nccl-sys".to_owned(), root.join("nccl-sys/src")));
    found.push(("simulations".to_owned(), root.join("simulations/src")));
    found.sort();
    found
}

#[test]
fn no_two_files_of_a_crate_use_each_other() {
    let mut wrong = Vec::new();
    for (name, folder) in crates() {
        for circle in circles(&read(&folder)) {
            let files: Vec<String> = circle.iter().map(|(module, _)| module.join("::")).collect();
            if EXCEPTIONS.iter().any(|(of, known, _)| *of == name && files == *known) {
                continue;
            }
            let lines =
                circle.iter().map(|(module, uses)| format!("    `{}` uses {uses}", module.join("::")));
            wrong.push(format!("{name}:\n{}", lines.collect::<Vec<String>>().join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{} circles\n{}", wrong.len(), wrong.join("\n"));
}

/// The functions of a source that take a bare `bool`, with the parameter's name.
fn flags(source: &str) -> Vec<(String, String)> {
    let tokens = tokens(source);
    let word = |at: usize| tokens.get(at).map_or("", String::as_str);
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| word(*at) == "fn") {
        let name = word(at + 1);
        // What stands in angle brackets may have brackets of its own: `fn run<F: Fn(u32) -> bool>(f: F)`.
        let (mut open, mut angles) = (at + 2, 0);
        while open < tokens.len() && !(angles == 0 && word(open) == "(") {
            angles += i32::from(word(open) == "<") - i32::from(word(open) == ">" && word(open - 1) != "-");
            open += 1;
        }
        let (mut depth, mut end) = (0, open);
        while end < tokens.len() {
            depth += i32::from(word(end) == "(") - i32::from(word(end) == ")");
            if depth == 0 {
                break;
            }
            if word(end + 1) == ":" && word(end + 2) == "bool" {
                found.push((name.to_owned(), word(end).to_owned()));
            }
            end += 1;
        }
    }
    found
}

#[test]
fn no_function_takes_a_bare_bool() {
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (of, folder) in crates() {
        for (module, source) in sources(&folder) {
            for (function, parameter) in flags(&source) {
                match FLAGS.iter().position(|(a, b, c, _)| *a == of && *b == function && *c == parameter) {
                    Some(known) => drop(used.insert(known)),
                    None => wrong.push(format!("{of} {}: {function}({parameter}: bool)", module.join("::"))),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "a type says more, or two functions do:\n{}", wrong.join("\n"));
    assert_eq!(used.len(), FLAGS.len(), "an exception is no longer needed: {used:?}");
}

#[test]
fn a_bare_bool_is_found_among_other_parameters() {
    let source =
        "impl A { pub fn kill<F: Fn(u32) -> bool>(&mut self, f: F, (a, b): (u8, u8), next: bool) -> bool {} }
        fn fine(f: impl Fn(bool) -> bool) -> bool { struct S { flag: bool } true }
        #[cfg(test)] mod tests { fn helper(flag: bool) {} }";
    assert_eq!(flags(source), [("kill".to_owned(), "next".to_owned())]);
}

/// A crate that is written down.
fn made_up(files: &[(&str, &str)]) -> Crate {
    let module = |name: &str| name.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect();
    files.iter().map(|(name, source)| (module(name), File::read(source))).collect()
}

fn names(found: &[Vec<(Module, String)>]) -> Vec<Vec<String>> {
    found.iter().map(|circle| circle.iter().map(|(module, _)| module.join("::")).collect()).collect()
}

#[test]
fn a_circle_is_found_also_around_a_corner_and_through_a_re_export() {
    let root = ("", "mod a; mod b; mod c; pub use c::Third;");
    let corner = [
        root,
        ("a", "use crate::b::second; pub struct First;"),
        ("b", "pub fn second() -> crate::Third { panic!(\"crate::a::First\") }"),
        ("c", "use super::a::{First as One}; pub struct Third(One);"),
    ];
    assert_eq!(names(&circles(&made_up(&corner))), [["a", "b", "c"]]);
    let mut open = corner;
    open[3] =
        ("c", "// use super::a::First;\npub struct Third;\n#[cfg(test)] mod tests { use crate::a::First; }");
    assert_eq!(names(&circles(&made_up(&open))), Vec::<Vec<String>>::new());
}

#[test]
fn a_parent_may_be_used_by_its_children_but_not_use_what_they_define() {
    let idiom = [
        ("", "mod machine;"),
        ("machine", "mod step; pub struct Machine; impl Machine { fn run(&mut self) { self.step() } }"),
        ("machine::step", "use super::Machine; impl Machine { pub fn step(&mut self) {} }"),
    ];
    assert!(circles(&made_up(&idiom)).is_empty());
    let mut circle = idiom;
    circle[2].1 = "use super::Machine; pub struct Small; impl Machine { pub fn step(&mut self) {} }";
    circle[1].1 = "mod step; use step::Small; pub struct Machine(Small);";
    assert_eq!(names(&circles(&made_up(&circle))), [["machine", "machine::step"]]);
}
