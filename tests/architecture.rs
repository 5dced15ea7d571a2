//! The rules of the code as tests: who may import whom, how long a file may be, and which names no part may have.
//!
//! A new edge is a decision record first, and a line in [`ALLOWED`] after that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A longer file has more than one thing to say.
const MOST_LINES: usize = 1000;

/// Who may import whom. A crate may import crates of lower rows only; L1 crates do not know each other.
const ALLOWED: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("nccl-sys", &[]),
    ("locate", &[]),
    ("fake-common", &[]),
    ("engine", &["types"]),
    ("collective", &["types"]),
    ("oracle", &["types", "collective"]),
    ("protocol", &["types"]),
    ("telemetry", &["types"]),
    ("data", &["types"]),
    ("tokenizer", &[]),
    ("checkpoint", &["types"]),
    ("transport", &["types", "collective"]),
    ("nccl", &["types", "collective", "nccl-sys"]),
    ("fake-nccl", &["nccl-sys", "fake-common"]),
    ("fake-cuda", &[]),
    ("fake-cublaslt", &["fake-common"]),
    ("fake-cudnn", &["fake-common"]),
    ("cuda", &["types", "collective", "engine", "nccl"]),
    ("launch", &["protocol", "transport"]),
    ("rounds", &["types", "engine", "collective"]),
    ("sim", &["types", "engine", "collective", "protocol", "checkpoint", "rounds"]),
    (
        "runtime",
        &[
            "types",
            "engine",
            "collective",
            "protocol",
            "telemetry",
            "data",
            "checkpoint",
            "transport",
            "rounds",
        ],
    ),
    // Above the root: it sees what the root shows.
    ("python", &[]),
];

/// The crates that are pure: no clock, no thread, no order that can be seen.
const PURE: &[&str] = &["types", "engine", "collective", "protocol", "rounds", "sim"];

/// If a helper has no home, the design is not finished.
const NO_HOMES: &[&str] = &["common", "util", "utils", "misc", "core", "helpers"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The crates that are not in the folder `crates`.
const AT_THE_TOP: &[&str] = &["nccl-sys"];

/// The names of dtrain's own crates that a manifest lists under `[dependencies]` or `[target...dependencies]`.
fn own_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut counts = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            // Tests may use what they like: they are not part of the crate.
            counts = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if counts {
            let name = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').next().unwrap();
            let own = name.strip_prefix("dtrain-").or(AT_THE_TOP.contains(&name).then_some(name));
            found.extend(own.map(str::to_owned));
        }
    }
    found
}

/// Edges of `manifests` that `allowed` does not have, and crates that it does not know.
fn violations(manifests: &BTreeMap<String, String>, allowed: &[(&str, &[&str])]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, manifest) in manifests {
        let Some((_, may)) = allowed.iter().find(|(known, _)| known == name) else {
            wrong.push(format!("{name} is not in the table of layers"));
            continue;
        };
        let edges = own_dependencies(manifest);
        let forbidden = edges.iter().filter(|edge| !may.contains(&edge.as_str()));
        wrong.extend(forbidden.map(|edge| format!("{name} imports {edge}")));
    }
    wrong
}

fn crates() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let inside = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for path in inside.chain(AT_THE_TOP.iter().map(|name| root().join(name))) {
        let manifest = path.join("Cargo.toml");
        if manifest.is_file() {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read_to_string(manifest).unwrap());
        }
    }
    found
}

/// Every file below the folders that hold code, except what is built or fetched.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let folders = ["crates", "tests", "examples", "simulations", "nccl-sys", "bench", "docs"];
    let mut left: Vec<PathBuf> =
        folders.iter().map(|name| root().join(name)).filter(|path| path.is_dir()).collect();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.file_name().is_some_and(|name| name == "target") => {}
                true => left.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn a_crate_imports_crates_of_lower_rows_only() {
    let crates = crates();
    assert!(crates.len() >= 9, "the crates were not found: {:?}", crates.keys());
    assert_eq!(violations(&crates, ALLOWED), Vec::<String>::new());
}

#[test]
fn the_layer_rule_finds_a_crate_that_reaches_up_and_one_that_nobody_knows() {
    let manifest = |text: &str| text.to_owned();
    let bad = BTreeMap::from([
        ("types".to_owned(), manifest("[dependencies]\ndtrain-engine = { workspace = true }\n")),
        (
            "data".to_owned(),
            manifest(
                "[dependencies]\ndtrain-types.workspace = true\n[dev-dependencies]\ndtrain-engine = 1\n",
            ),
        ),
        ("common".to_owned(), manifest("")),
        (
            "engine".to_owned(),
            manifest("[target.'cfg(unix)'.dependencies]\ndtrain-data = { path = \"x\" }\n"),
        ),
        ("collective".to_owned(), manifest("[dependencies]\nnccl-sys.workspace = true\n")),
    ]);
    let found = violations(&bad, ALLOWED);
    assert_eq!(
        found,
        [
            "collective imports nccl-sys",
            "common is not in the table of layers",
            "engine imports data",
            "types imports engine"
        ]
    );
}

#[test]
fn only_the_runtime_knows_actors_and_pure_crates_know_no_runtime() {
    for (name, manifest) in crates() {
        let has = |word: &str| manifest.lines().any(|line| line.trim_start().starts_with(word));
        assert!(name == "runtime" || !has("kameo"), "{name} imports kameo");
        if PURE.contains(&name.as_str()) {
            assert!(!has("tokio"), "{name} imports tokio");
            let rules = root().join("crates").join(&name).join("clippy.toml");
            let rules =
                fs::read_to_string(&rules).unwrap_or_else(|error| panic!("{}: {error}", shown(&rules)));
            for banned in ["Instant::now", "SystemTime::now", "thread::spawn", "HashMap"] {
                assert!(rules.contains(banned), "crates/{name}/clippy.toml does not ban {banned}");
            }
        }
    }
}

#[test]
fn no_file_is_too_long() {
    let sources =
        files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs" || end == "py"));
    let mut count = 0;
    for path in sources {
        count += 1;
        let text = fs::read_to_string(&path).unwrap();
        // Bindings are generated and compared by a test of their own.
        if text.lines().take(3).any(|line| line.contains("@generated")) {
            continue;
        }
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines, at most {MOST_LINES} are allowed", shown(&path));
    }
    assert!(count > 50, "only {count} source files were found");
}

#[test]
fn every_source_file_begins_by_saying_what_it_is() {
    for path in files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let says = first.starts_with("//!") || first.starts_with("// @generated") || first.starts_with("/*");
        assert!(says, "{} begins with {first:?}", shown(&path));
    }
}

#[test]
fn no_part_is_called_by_a_name_that_says_nothing() {
    assert!(!root().join("src").exists(), "the root package lives in crates/cli, not in src");
    for path in files() {
        let inside = path.strip_prefix(root()).unwrap();
        for part in inside.components() {
            let name = Path::new(part.as_os_str()).file_stem().unwrap().to_str().unwrap();
            assert!(!NO_HOMES.contains(&name), "{} has no real name", shown(&path));
        }
    }
}

#[test]
fn no_file_of_tests_is_left_out() {
    let of = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (targets, modules) = (of("Cargo.toml"), of("tests/main.rs"));
    let mut left_out = BTreeSet::new();
    for entry in fs::read_dir(root().join("tests")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let (stem, end) = name.split_once('.').unwrap_or((&name, "folder"));
        let tests = end == "rs" || entry.path().join("mod.rs").exists();
        let named =
            targets.contains(&format!("\"tests/{name}\"")) || modules.contains(&format!("\nmod {stem};"));
        if tests && !named {
            left_out.insert(name);
        }
    }
    assert_eq!(
        left_out,
        BTreeSet::new(),
        "they are neither modules of tests/main.rs nor targets of Cargo.toml"
    );
}

/// The name of the type that a line of source declares for more than its own file.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    // `pub(super)` and `pub(crate)` are found by a search as well.
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type" | "union");
    // A macro's `$name` is no name yet.
    (is_type && !name.is_empty()).then_some(name)
}

/// The crate that a source file is part of; none for tests, examples and benchmarks, which are programs of their own.
fn crate_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root()).unwrap();
    let parts: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap()).collect();
    let apart = |part: &&str| matches!(*part, "tests" | "examples" | "benches");
    match parts.as_slice() {
        ["crates", name, rest @ ..] if !rest.iter().any(apart) => Some((*name).to_owned()),
        [name, "src", ..] => Some((*name).to_owned()),
        _ => None,
    }
}

/// The names that several public types of one crate have, with the files that declare them.
fn doubles(sources: &[(String, String, String)]) -> Vec<String> {
    let mut declared: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (of, file, text) in sources {
        for name in text.lines().filter_map(public_type) {
            declared.entry((of, name)).or_default().push(file);
        }
    }
    let several = declared.iter().filter(|(_, files)| files.len() > 1);
    several.map(|((of, name), files)| format!("{of}: {name} in {}", files.join(", "))).collect()
}

#[test]
fn no_crate_has_two_public_types_of_one_name() {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let sources: Vec<(String, String, String)> = rust
        .filter_map(|path| Some((crate_of(&path)?, shown(&path), fs::read_to_string(&path).unwrap())))
        // Bindings declare what the foreign header declares.
        .filter(|(_, _, text)| !text.lines().take(3).any(|line| line.contains("@generated")))
        .collect();
    assert!(sources.len() > 300, "only {} sources were found", sources.len());
    assert_eq!(doubles(&sources), Vec::<String>::new());
}

#[test]
fn the_rule_of_names_finds_a_type_that_is_declared_twice() {
    let source = |of: &str, file: &str, text: &str| (of.to_owned(), file.to_owned(), text.to_owned());
    let sources = [
        source("engine", "a.rs", "pub struct Conv<const N: usize> {\n    pub kind: Kind,\nstruct Hidden;"),
        source("engine", "b.rs", "    pub(super) type Conv = u32;\npub fn hidden() {}\nstruct Hidden;"),
        source("cuda", "c.rs", "pub trait Conv: Send {}\n// pub struct Conv;\npub unsafe trait Other {}"),
    ];
    assert_eq!(doubles(&sources), ["engine: Conv in a.rs, b.rs"]);
}

#[test]
fn unsafe_stands_only_where_it_has_to() {
    // The SIMD kernels and their pool, memory shared between processes, libraries that are opened at run time, the GPU's
    // memory with the stand-in for a GPU in its tests, mapped files, the bindings to NCCL, their safe owner, the fake
    // libraries, what tells Python of a thread and what lends it a gradient, the allocator of tests that count, and the one call that makes the network device of a test.
    let may = [
        "crates/locate/src/open.rs",
        "crates/engine/src/cpu/",
        "crates/transport/src/shm/",
        "crates/cuda/",
        "crates/data/src/mmap.rs",
        "nccl-sys/src/",
        "crates/nccl/",
        "crates/fake-nccl/",
        "crates/fake-cuda/",
        "crates/fake-common/",
        "crates/fake-cublaslt/",
        "crates/fake-cudnn/",
        "crates/python/src/lent.rs",
        "crates/python/src/threads.rs",
        "tests/harness/counting.rs",
        "tests/harness/disk.rs",
        "tests/harness/network.rs",
    ];
    let mut seen = 0;
    for path in files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let name = shown(&path);
        let text = fs::read_to_string(&path).unwrap();
        if may.iter().any(|folder| name.starts_with(folder)) {
            seen += usize::from(text.contains("unsafe "));
            continue;
        }
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let bad = code
            .filter(|line| ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| line.contains(word)));
        // This file names the words to look for.
        let bad: Vec<&str> = if name == "tests/architecture.rs" { Vec::new() } else { bad.collect() };
        assert!(bad.is_empty(), "{name} is not among the places for unsafe: {bad:?}");
    }
    assert!(seen > 0, "no unsafe was found where it must be");
}
