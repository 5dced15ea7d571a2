//! What kernels touch: built so that `tests/shim/accesses.cpp` is told each access, and what it says of them.

use super::compiled;
use dtrain_cuda::kernels::Kernel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Accesses of whole warps at one place of a kernel.
#[derive(Clone, Debug)]
pub struct Access {
    pub kernel: &'static Kernel,
    pub shared: bool,
    /// Of a thread.
    pub bytes: u64,
    pub requests: u64,
    /// Bytes, of which no run takes less than a sector; of shared memory turns of its banks.
    pub took: u64,
    /// The same, if the bytes lay as they should.
    pub least: u64,
    /// In which library.
    library: PathBuf,
}

impl Access {
    /// Of a line of what accesses.cpp says: where it is, and who called it, and what it took.
    pub(super) fn parse(kernel: &'static Kernel, library: &Path, line: &str) -> (String, Self) {
        let (numbers, places) = line.split_once(" +").expect("an access is somewhere");
        let mut numbers = numbers.split(' ').map(|n| n.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("five numbers");
        let [shared, bytes, requests, took, least] = std::array::from_fn(|_| next());
        let library = library.to_owned();
        (format!("+{places}"), Self { kernel, shared: shared == 1, bytes, requests, took, least, library })
    }

    /// And what it took in another launch.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.took += other.took;
        self.least += other.least;
    }

    /// Where that is in the source, if somebody here knows.
    pub fn place(&self, places: &str) -> String {
        lines(&self.library, places)
    }
}

/// Accesses by kernel and place in its library.
pub type Accesses = BTreeMap<(&'static str, String), Access>;

/// The lines of addresses of a library: `+1a2b +3c4d`.
pub(super) fn lines(library: &Path, places: &str) -> String {
    // A call is before the address that it comes back to.
    let before = |place: &str| {
        let address = u64::from_str_radix(place.trim_start_matches('+'), 16).unwrap_or(1);
        format!("{:x}", address.saturating_sub(1))
    };
    let found = Command::new("addr2line")
        .args(["-f", "-C", "-s", "-e"])
        .arg(library)
        .args(places.split_whitespace().map(before))
        .output();
    match found {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let all: Vec<&str> = text.lines().collect();
            let named = |pair: &[&str]| {
                format!(
                    "{} ({})",
                    pair[0].split('(').next().unwrap_or_default(),
                    pair[1].split(' ').next().unwrap_or_default()
                )
            };
            all.chunks_exact(2).map(named).collect::<Vec<_>>().join(" < ")
        }
        _ => places.to_owned(),
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a text in `folder` with all that watches it.
pub(super) fn library(compiler: &Path, source: &str, folder: &Path) -> PathBuf {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim");
    let [text, object, library] = ["kernels.cpp", "kernels.o", "kernels.so"].map(|name| folder.join(name));
    std::fs::write(&text, source).expect("the folder is ours");
    let flags = || compiled::flags().into_iter().filter(|flag| *flag != "-shared");
    // Not optimised: each access of the source is one.
    run(Command::new(compiler)
        .args(flags())
        .args(["-O0", "-g", "-fsanitize=thread", "-DSHIM_WATCHED", "-c", "-I"])
        .arg(&shim)
        .arg("-o")
        .args([&object, &text]));
    run(Command::new(compiler).arg("-shared").arg("-o").args([
        &library,
        &object,
        &watcher(compiler, &shim, folder),
    ]));
    library
}

/// What is told of accesses, which is the same for all.
fn watcher(compiler: &Path, shim: &Path, folder: &Path) -> PathBuf {
    let text = shim.join("accesses.cpp");
    let source = std::fs::read_to_string(&text).expect("it stands there");
    let kept = compiled::kept(&compiler.to_string_lossy(), &[&source]).map(|path| path.with_extension("o"));
    let _building = kept.as_deref().and_then(compiled::building);
    if let Some(kept) = kept.as_ref().filter(|kept| kept.is_file()) {
        return kept.clone();
    }
    let object = folder.join("accesses.o");
    let flags = compiled::flags().into_iter().filter(|flag| *flag != "-shared");
    run(Command::new(compiler).args(flags).arg("-c").arg("-o").args([&object, &text]));
    if let Some(kept) = &kept {
        compiled::keep(kept, &object);
    }
    object
}
