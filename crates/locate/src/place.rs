//! The folders in which a library may be, in the one order in which they are looked at:
//!
//! 1. `DTRAIN_LIBRARY_PATH`: folders or files; with `DTRAIN_LIBRARY_ONLY=1` nothing else
//! 2. the toolkit that `CUDA_HOME`, `CUDA_PATH` or `ROCM_PATH` names
//! 3. the packages of the Python in use: `VIRTUAL_ENV`, `CONDA_PREFIX`, `PYTHONPATH`, then the first `python3` of `PATH`
//! 4. `LD_LIBRARY_PATH`
//! 5. the dynamic linker's cache
//! 6. the folders that systems use
//!
//! Python is not started: a process may hang, and runs what its owner put into its start-up files. Its packages lie at a
//! fixed distance from the interpreter.

use crate::{Environment, Library, cache};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a place is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", content = "name", rename_all = "snake_case")]
pub enum Origin {
    /// A variable names it.
    Variable(String),
    /// Packages of a Python.
    Python(PathBuf),
    /// The dynamic linker's cache names it.
    LinkerCache,
    /// Systems use it.
    Standard,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::Python(prefix) => write!(f, "Python at {}", prefix.display()),
            Self::LinkerCache => f.write_str("the dynamic linker's cache"),
            Self::Standard => f.write_str("a standard folder"),
        }
    }
}

/// A folder, or a file that was named, in which a library may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The folder or file.
    pub path: PathBuf,
    /// Why it is looked at.
    pub origin: Origin,
}

/// Folders of a toolkit that hold its libraries. Not `stubs`: what lies there is for the linker alone.
const TOOLKIT: &[&str] = &["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
/// Below the packages of a Python: PyPI's `nvidia/nccl/lib` or `nvidia/cu13/lib`, and what PyTorch brings itself.
const MOST_DEPTH: usize = 3;

/// Every place for a library, in order, each once. Whether it exists is not looked at, but for folders whose names
/// hold a version.
///
/// *Order*: the numbered list at the head of this file. *Blocks* on the disk.
#[must_use]
pub fn places(library: Library, environment: &Environment) -> Vec<Place> {
    let mut found = Found::default();
    found.variable("DTRAIN_LIBRARY_PATH", environment.paths("DTRAIN_LIBRARY_PATH"));
    if environment.only_named() {
        return found.places;
    }
    for name in ["CUDA_HOME", "CUDA_PATH", "ROCM_PATH"] {
        let folders = environment.path(name).into_iter();
        let folders = folders.flat_map(|toolkit| TOOLKIT.iter().map(move |below| toolkit.join(below)));
        found.variable(name, folders.collect());
    }
    for prefix in prefixes(environment) {
        let origin = Origin::Python(prefix.clone());
        python_folders(&prefix).into_iter().for_each(|folder| found.add(folder, origin.clone()));
    }
    for packages in environment.paths("PYTHONPATH") {
        found.variable("PYTHONPATH", package_folders(&packages));
    }
    found.variable("LD_LIBRARY_PATH", environment.paths("LD_LIBRARY_PATH"));
    for entry in cache::entries(&fs::read(&environment.linker_cache).unwrap_or_default()) {
        let ours = library.stems().iter().any(|stem| is_library(&entry.name, stem));
        if let (true, Some(folder)) = (ours, entry.path.parent()) {
            found.add(folder.to_owned(), Origin::LinkerCache);
        }
    }
    environment.standard.iter().for_each(|folder| found.add(folder.clone(), Origin::Standard));
    found.places
}

/// Whether a file's name is that of a library: `STEM.so`, or `STEM.so.` and numbers.
pub(crate) fn is_library(name: &str, stem: &str) -> bool {
    let Some(rest) = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(".so")) else { return false };
    let numbers = |rest: &str| {
        rest.split('.').all(|part| part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty())
    };
    rest.is_empty() || rest.strip_prefix('.').is_some_and(numbers)
}

#[derive(Default)]
struct Found {
    places: Vec<Place>,
    seen: BTreeSet<PathBuf>,
}

impl Found {
    fn add(&mut self, path: PathBuf, origin: Origin) {
        if self.seen.insert(path.clone()) {
            self.places.push(Place { path, origin });
        }
    }

    fn variable(&mut self, name: &str, paths: Vec<PathBuf>) {
        paths.into_iter().for_each(|path| self.add(path, Origin::Variable(name.to_owned())));
    }
}

/// Where the Pythons in use are installed: the environment that is active, then what `python3` means in a shell.
fn prefixes(environment: &Environment) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| environment.path(name));
    let mut all: Vec<PathBuf> = active.collect();
    let in_path = environment.paths("PATH").into_iter().map(|folder| folder.join("python3"));
    let python = in_path.filter(|path| path.is_file()).find_map(|path| prefix_of(&path, environment));
    // Packages that a user installed without an environment.
    all.extend(python);
    all.extend(environment.path("HOME").map(|home| home.join(".local")));
    all
}

/// `PREFIX/bin/python3` gives `PREFIX`. pyenv's `shims/python3` is a script that looks for the version in use.
fn prefix_of(python: &Path, environment: &Environment) -> Option<PathBuf> {
    let folder = python.parent()?;
    if folder.file_name()? == "shims" {
        let root = folder.parent()?;
        let chosen = || fs::read_to_string(root.join("version")).ok();
        let version =
            environment.value("PYENV_VERSION").and_then(|version| version.to_str()).map(str::to_owned);
        let version = version.or_else(chosen)?;
        return Some(root.join("versions").join(version.split_whitespace().next()?));
    }
    // A virtual environment's interpreter is a link to another one; its packages are its own.
    if folder.parent()?.join("pyvenv.cfg").is_file() {
        return Some(folder.parent()?.to_owned());
    }
    Some(fs::canonicalize(python).ok()?.parent()?.parent()?.to_owned())
}

/// Folders of libraries below one Python: its packages, newest version first, and what conda puts beside them.
fn python_folders(prefix: &Path) -> Vec<PathBuf> {
    let versions = |lib: &str| {
        let found = folders(&prefix.join(lib));
        let minor =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("python3.")?.parse::<u32>().ok();
        let mut found: Vec<_> = found.into_iter().filter_map(|path| Some((minor(&path)?, path))).collect();
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, path)| path)
    };
    let mut packages: Vec<PathBuf> = Vec::new();
    for version in versions("lib").chain(versions("lib64")).chain(versions("local/lib")) {
        packages.extend([version.join("site-packages"), version.join("dist-packages")]);
    }
    // Debian's own packages have no version in their path.
    packages.push(prefix.join("lib/python3/dist-packages"));
    let mut all: Vec<PathBuf> = packages.iter().flat_map(|folder| package_folders(folder)).collect();
    if prefix.join("conda-meta").is_dir() {
        all.extend(["lib", "targets/x86_64-linux/lib"].map(|below| prefix.join(below)));
    }
    all
}

/// `nvidia/**/lib` below a folder of packages, by name, and the libraries that come inside PyTorch.
fn package_folders(packages: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    libraries_below(&packages.join("nvidia"), MOST_DEPTH, &mut all);
    all.extend(Some(packages.join("torch/lib")).filter(|folder| folder.is_dir()));
    all
}

fn libraries_below(folder: &Path, depth: usize, all: &mut Vec<PathBuf>) {
    for below in folders(folder) {
        if below.file_name().is_some_and(|name| name == "lib") {
            all.push(below);
        } else if depth > 1 {
            libraries_below(&below, depth - 1, all);
        }
    }
}

/// The folders in a folder, by name. One that cannot be read has none.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn make(root: &Path, folder: &str) -> PathBuf {
        let path = root.join(folder);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn environment(variables: &[(&'static str, String)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| (*name, value.into())).collect();
        Environment { variables, ..Environment::default() }
    }

    fn shown(library: Library, environment: &Environment, root: &Path) -> Vec<String> {
        let short = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        let places = places(library, environment);
        places.iter().map(|place| format!("{}: {}", place.origin, short(&place.path))).collect()
    }

    #[test]
    fn places_come_in_one_order_and_each_once() {
        let machine = tempfile::tempdir().unwrap();
        let root = machine.path();
        let at = |name: &str| root.join(name).display().to_string();
        for folder in [
            "venv/lib/python3.9/site-packages/nvidia/nccl/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
        ] {
            make(root, folder);
        }
        make(root, "venv/lib/python3.12/site-packages/torch/lib");
        make(root, "venv/lib/python3.12/site-packages/nvidia/nccl/include");
        let both = format!("{}:{}:{}", at("linked"), at("own"), "");
        let mut environment = environment(&[
            ("DTRAIN_LIBRARY_PATH", at("own")),
            ("CUDA_HOME", at("cuda")),
            ("VIRTUAL_ENV", at("venv")),
            ("LD_LIBRARY_PATH", both),
        ]);
        environment.linker_cache = root.join("cache");
        let cached = [
            at("one/libnccl.so.2"),
            at("one/libz.so.1"),
            at("linked/libnccl.so"),
            at("two/librccl.so.1"),
            at("three/libnccl-net.so"),
        ];
        let names = ["libnccl.so.2", "libz.so.1", "libnccl.so", "librccl.so.1", "libnccl-net.so"];
        let entries: Vec<(&str, &str)> = names.into_iter().zip(cached.iter().map(String::as_str)).collect();
        fs::write(&environment.linker_cache, cache::written(&entries)).unwrap();
        environment.standard = vec![root.join("usr"), root.join("two")];
        let python = format!("Python at {}: venv/lib/python3", at("venv"));
        assert_eq!(
            shown(Library::Nccl, &environment, root),
            [
                "DTRAIN_LIBRARY_PATH: own".to_owned(),
                "CUDA_HOME: cuda/lib64".into(),
                "CUDA_HOME: cuda/lib".into(),
                "CUDA_HOME: cuda/targets/x86_64-linux/lib".into(),
                "CUDA_HOME: cuda/targets/sbsa-linux/lib".into(),
                format!("{python}.12/site-packages/nvidia/cu13/lib"),
                format!("{python}.12/site-packages/torch/lib"),
                format!("{python}.9/site-packages/nvidia/nccl/lib"),
                "LD_LIBRARY_PATH: linked".into(),
                "the dynamic linker's cache: one".into(),
                "the dynamic linker's cache: two".into(),
                "a standard folder: usr".into(),
            ]
        );
        environment.variables.insert("DTRAIN_LIBRARY_ONLY", "1".into());
        assert_eq!(shown(Library::Nccl, &environment, root), ["DTRAIN_LIBRARY_PATH: own"]);
    }

    #[test]
    fn the_packages_of_a_python_are_found_without_starting_it() {
        let machine = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(machine.path()).unwrap();
        let at = |name: &str| root.join(name).display().to_string();
        let nccl = "lib/python3.11/site-packages/nvidia/nccl/lib";
        for prefix in ["real", "pyenv/versions/3.11.7", "conda"] {
            make(&root, &format!("{prefix}/{nccl}"));
            make(&root, &format!("{prefix}/bin"));
            fs::write(root.join(prefix).join("bin/python3"), "#!/bin/sh\nsleep 1000\n").unwrap();
        }
        make(&root, "bin");
        symlink(root.join("real/bin/python3"), root.join("bin/python3")).unwrap();
        make(&root, "pyenv/shims");
        fs::write(root.join("pyenv/shims/python3"), "#!/bin/sh\nexec pyenv\n").unwrap();
        fs::write(root.join("pyenv/version"), "3.11.7\n").unwrap();
        make(&root, "conda/conda-meta");
        make(&root, "venv/bin");
        make(&root, &format!("venv/{nccl}"));
        fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        symlink(root.join("real/bin/python3"), root.join("venv/bin/python3")).unwrap();
        for (variables, wanted) in [
            (&[("PATH", at("bin"))][..], vec![format!("real/{nccl}")]),
            (&[("PATH", format!("{}:{}", at("nowhere"), at("venv/bin")))], vec![format!("venv/{nccl}")]),
            (&[("PATH", at("pyenv/shims"))], vec![format!("pyenv/versions/3.11.7/{nccl}")]),
            (&[("PATH", at("pyenv/shims")), ("PYENV_VERSION", "9".into())], vec![]),
            (
                &[("CONDA_PREFIX", at("conda"))],
                vec![format!("conda/{nccl}"), "conda/lib".into(), "conda/targets/x86_64-linux/lib".into()],
            ),
            (&[("PYTHONPATH", at("real/lib/python3.11/site-packages"))], vec![format!("real/{nccl}")]),
        ] {
            let found = shown(Library::Nccl, &environment(variables), &root);
            let found: Vec<&str> = found.iter().map(|line| line.rsplit(": ").next().unwrap()).collect();
            assert_eq!(found, wanted, "{variables:?}");
        }
    }

    #[test]
    fn a_library_is_told_by_its_whole_name() {
        for name in ["libnccl.so", "libnccl.so.2", "libnccl.so.2.32.3"] {
            assert!(is_library(name, "libnccl"), "{name}");
        }
        for name in [
            "libnccl-net.so",
            "libnccl.so.2.bak",
            "libnccl.so.",
            "libnccl_static.a",
            "libnccl",
            "xlibnccl.so",
        ] {
            assert!(!is_library(name, "libnccl"), "{name}");
        }
    }
}
