//! Machine code that is kept on the disk, so that kernels are compiled once.
//!
//! A file's name is the digest of all that the machine code depends on; its content begins with its own digest. So a file
//! that is damaged, or that somebody else wrote half, is not used but written anew. It is written under another name and
//! renamed. Nothing is ever removed: a new source has a new name.

use crate::nvrtc::{Nvrtc, options};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file begins with; another one for another layout.
const MAGIC: &[u8; 16] = b"dtrain kernels 1";
/// Bytes of a digest.
const DIGEST: usize = 32;

/// A folder of machine code.
#[derive(Clone, Debug)]
pub struct KernelCache {
    folder: PathBuf,
}

impl KernelCache {
    /// In a folder, which is made when it is needed.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// `dtrain/kernels` in the user's cache: `XDG_CACHE_HOME`, or `.cache` in the home folder, or else the system's folder
    /// for temporary files.
    #[must_use]
    pub fn of_user() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Self::at(&cache.unwrap_or_else(std::env::temp_dir).join("dtrain/kernels"))
    }

    /// The name of what a compiler makes of a source.
    pub(crate) fn key(&self, nvrtc: &Nvrtc, source: &str, architecture: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let (major, minor) = nvrtc.version();
        let version = format!("{major}.{minor}");
        let options = options(architecture);
        for text in options.iter().map(String::as_str).chain([version.as_str(), source]) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        format!("{}.cubin", hasher.finalize().to_hex())
    }

    /// What is kept under a name; nothing if it is damaged.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.folder.join(key)).ok()?;
        let head = MAGIC.len() + DIGEST;
        let (magic, digest) = bytes.get(..head)?.split_at(MAGIC.len());
        let whole = magic == MAGIC && blake3::hash(&bytes[head..]).as_bytes() == digest;
        whole.then(|| bytes.split_off(head))
    }

    /// Keeps machine code. *Errors*: of the file system.
    pub(crate) fn put(&self, key: &str, image: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let draft = self.folder.join(format!(".{key}.{}.{number}", std::process::id()));
        let content = [MAGIC, blake3::hash(image).as_bytes().as_slice(), image].concat();
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&draft, content))
            .and_then(|()| fs::rename(&draft, self.folder.join(key)));
        if written.is_err() {
            let _may_not_be_there = fs::remove_file(&draft);
        }
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.folder.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_found_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(&folder.path().join("below"));
        assert_eq!(cache.get("k"), None);
        cache.put("k", b"machine code").unwrap();
        assert_eq!(cache.get("k").as_deref(), Some(&b"machine code"[..]));
        let path = folder.path().join("below/k");
        let good = fs::read(&path).unwrap();
        for (at, length) in [(0, good.len()), (20, good.len()), (good.len() - 1, good.len()), (0, 47), (0, 3)]
        {
            let mut bad = good[..length].to_vec();
            bad[at] ^= u8::from(length == good.len());
            fs::write(&path, &bad).unwrap();
            assert_eq!(cache.get("k"), None, "{length} bytes, changed at {at}");
        }
        cache.put("k", b"again").unwrap();
        assert_eq!(cache.get("k").as_deref(), Some(&b"again"[..]));
        let names = fs::read_dir(folder.path().join("below")).unwrap();
        assert_eq!(names.count(), 1, "no draft is left");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = KernelCache::at(&folder.path().join("file")).put("k", b"x").unwrap_err();
        assert!(error.to_string().contains("file: "), "{error}");
    }
}
