//! A disk whose power can be cut: what was not synced is lost, as the kernel's own tests of file systems lose it. Needs root and `mkfs.ext4`.

use rustix::ioctl::{Setter, ioctl};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Ends a file system at once. *Source*: `EXT4_IOC_SHUTDOWN`, linux/ext4.h.
const SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587D;
/// Without writing what it has not written.
const NO_FLUSH: u32 = 2;
/// *Units*: bytes.
const SIZE: u64 = 128 << 20;

/// A file system in a file, mounted at a folder.
pub struct Disk {
    /// The file; its device holds it from the first mount to the last. One that comes and goes with each mount may go just behind the next.
    _image: tempfile::NamedTempFile,
    device: String,
    at: PathBuf,
}

impl Disk {
    /// Makes it, and the folder. *Errors*: what the system does not allow.
    pub fn build(at: &Path) -> Result<Self, String> {
        let image = tempfile::NamedTempFile::new().expect("a file");
        image.as_file().set_len(SIZE).expect("a sparse file");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image.path()))?;
        std::fs::create_dir_all(at).expect("a folder");
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(image.path()))?;
        let disk = Self { _image: image, device, at: at.to_owned() };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-t", "ext4", &self.device]).arg(&self.at)).map(drop)
    }

    /// Loses what was not synced; nothing can be read or written until it is mounted again.
    pub fn cut(&self) {
        let folder = File::open(&self.at).expect("it is mounted");
        // SAFETY: the operation takes a pointer to one 32-bit word.
        let setter = unsafe { Setter::<SHUTDOWN, u32>::new(NO_FLUSH) };
        // SAFETY: as said; `folder` is open.
        unsafe { ioctl(&folder, setter) }.expect("it can be shut down");
    }

    /// As the machine has its power back: the file system finds what was there, by its journal. Who used it is gone, or goes.
    pub fn again(&self) {
        self.unmount().expect("nobody uses it any more");
        self.mount().expect("it can be mounted again");
    }

    /// Takes all room that is left, until the file is removed.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.at.join("ballast");
        let mut file = File::create(&ballast).expect("it is mounted");
        let zeros = vec![0; 1 << 16];
        // Large pieces first, then what is left between them.
        for piece in [zeros.len(), 1024, 1] {
            while file.write_all(&zeros[..piece]).is_ok() {}
        }
        ballast
    }

    fn unmount(&self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            match run(Command::new("umount").arg(&self.at)) {
                Err(_) if begun.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                done => return done.map(drop),
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Where a test has failed, it may be in use.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.at));
        let _ = run(Command::new("losetup").args(["--detach", &self.device]));
    }
}

/// What a command says.
fn run(command: &mut Command) -> Result<String, String> {
    let ended = command.stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ended.status.success() { Ok(said(&ended.stdout)) } else { Err(said(&ended.stderr)) }
}
