//! Videos are decoded by ffmpeg, a program of its own: this file says where it is, what it is asked for and what its answers mean.
//!
//! The frames are those that `ffmpeg -i VIDEO FOLDER/%06d.png` writes, and they come as PNG files, so that they have the same pixels.
//! No option says how times become frames: what is written to `image2pipe` or `rawvideo` is treated as what is written to files. So
//! old and new versions understand all options here. This file does not know which frames are wanted, or what becomes of them.

use super::child::{Child, Ended};
use super::error::VideoError;
use super::png;
use crate::DataError;
use std::ffi::OsString;
use std::io::{self, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Without a frame for so long ffmpeg hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// What says its version hangs sooner.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);
/// The variable that names the program.
const VARIABLE: &str = "DTRAIN_FFMPEG";
/// To be counted, each frame is made so small. Its bytes are the square of it.
const THUMBNAIL: u64 = 16;
/// Matroska files that are cut off end with these words, but with exit code 0.
const CUT: &str = "File ended prematurely";
/// Last lines that do not say what is wrong: a line before them does.
const FAREWELLS: [&str; 5] = [
    "Conversion failed",
    "Error opening",
    "Last message repeated",
    "Task finished with",
    "Terminating thread",
];

/// The program that decodes videos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ffmpeg {
    program: PathBuf,
    patience: Duration,
}

impl Ffmpeg {
    /// The program that the variable `DTRAIN_FFMPEG` names, or else the first `ffmpeg` on `PATH`. It is not started.
    ///
    /// *Errors*: there is none.
    pub fn find() -> Result<Self, VideoError> {
        let program = find(std::env::var_os(VARIABLE), std::env::var_os("PATH"))?;
        Ok(Self { program, patience: PATIENCE })
    }

    /// Where it is.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its version, as it says it.
    ///
    /// *Errors*: it does not say so. *Blocks* for some seconds at most.
    pub fn version(&self) -> Result<String, VideoError> {
        let ffmpeg = Self { patience: SHORT_PATIENCE, ..self.clone() };
        let mut child = ffmpeg.start(&self.program, |command| command.arg("-version"))?;
        let text = io::read_to_string(&mut child).map_err(|error| ffmpeg.broken(error))?;
        ffmpeg.ended(child)?;
        let version = text.strip_prefix("ffmpeg version ").and_then(|rest| rest.split_whitespace().next());
        version.map(str::to_owned).ok_or_else(|| VideoError::Strange { program: self.program.clone() })
    }

    /// How many frames a video has. All of it is decoded, since no header of a file can be relied on.
    ///
    /// *Errors*: what ffmpeg cannot decode; see [`VideoError`]. *Blocks* for as long as that takes.
    pub(super) fn count(&self, video: &Path) -> Result<usize, VideoError> {
        let small = format!("scale={THUMBNAIL}:{THUMBNAIL}:flags=neighbor");
        let small = ["-vf", &small, "-pix_fmt", "gray", "-f", "rawvideo"];
        let mut child = self.decode(video, &small)?;
        let bytes = io::copy(&mut child, &mut io::sink()).map_err(|error| self.broken(error))?;
        self.ended(child)?;
        match bytes % (THUMBNAIL * THUMBNAIL) {
            0 => Ok((bytes / (THUMBNAIL * THUMBNAIL)) as usize),
            _ => Err(VideoError::Strange { program: self.program.clone() }),
        }
    }

    /// What `each` makes of the frames with these numbers, from 0, in ascending order, of a video with `counted`. Each comes as a PNG file.
    /// One is in memory at a time.
    ///
    /// *Errors*: of `each`; what ffmpeg cannot decode. *Blocks* for as long as that takes.
    pub(super) fn frames<T>(
        &self,
        video: &Path,
        (wanted, counted): (&[usize], usize),
        each: impl Fn(&[u8]) -> Result<T, DataError>,
    ) -> Result<Vec<T>, DataError> {
        let failed = |why| DataError::Video { file: video.to_owned(), why };
        let until = wanted.last().map_or(0, |last| last + 1).to_string();
        let files = ["-frames:v", &until, "-c:v", "png", "-compression_level", "0", "-f", "image2pipe"];
        let mut from = BufReader::new(self.decode(video, &files).map_err(failed)?);
        let (mut made, mut next) = (Vec::with_capacity(wanted.len()), 0);
        for frame in wanted {
            let mut file = Vec::new();
            let passed = (next..*frame).try_for_each(|_| png::copy(&mut from, &mut io::sink()));
            if let Err(error) = passed.and_then(|()| png::copy(&mut from, &mut file)) {
                return Err(failed(match error.kind() {
                    // What it says about that is more than that a frame is missing.
                    io::ErrorKind::UnexpectedEof => {
                        self.ended(from.into_inner()).err().unwrap_or(VideoError::Changed { counted })
                    }
                    _ => self.broken(error),
                }));
            }
            made.push(each(&file)?);
            next = frame + 1;
        }
        Ok(made)
    }

    /// Starts to decode a video.
    fn decode(&self, video: &Path, into: &[&str]) -> Result<Child, VideoError> {
        // With its protocol in front, a name is never an option or an address.
        let mut input = OsString::from("file:");
        input.push(video);
        self.start(video, |command| {
            command.args(["-hide_banner", "-nostdin", "-v", "error", "-xerror"]);
            // Who decodes on several threads may conceal errors in another way. Nothing is fetched that a playlist names.
            command.args(["-threads", "1", "-protocol_whitelist", "file", "-i"]).arg(input);
            command.args(["-an", "-sn", "-dn", "-threads", "1"]).args(into);
            command.args(["-flush_packets", "1", "pipe:1"])
        })
    }

    fn start(
        &self,
        about: &Path,
        asked: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<Child, VideoError> {
        let mut command = Command::new(&self.program);
        // With this variable it writes a report into the working folder.
        asked(&mut command).env_remove("FFREPORT").env("AV_LOG_FORCE_NOCOLOR", "1");
        Child::start(command, self.patience, about).map_err(|error| self.broken(error))
    }

    /// Waits for its end.
    ///
    /// *Errors*: it did not end well.
    fn ended(&self, child: Child) -> Result<(), VideoError> {
        let Ended { status, last_words } = child.finish().map_err(|error| self.broken(error))?;
        match (status.code(), status.signal()) {
            (Some(0), _) if !last_words.contains(CUT) => Ok(()),
            (Some(code), _) => Err(VideoError::Refused {
                reason: reason(&last_words).unwrap_or_else(|| format!("exit code {code}")),
            }),
            (None, signal) => Err(VideoError::Killed { signal: signal.unwrap_or_default() }),
        }
    }

    fn broken(&self, error: io::Error) -> VideoError {
        match error.kind() {
            io::ErrorKind::TimedOut => VideoError::Silent { seconds: self.patience.as_secs() },
            io::ErrorKind::InvalidData => VideoError::Strange { program: self.program.clone() },
            _ => VideoError::System { program: self.program.clone(), source: error },
        }
    }
}

/// The program that `named` names, or the first on `path`.
fn find(named: Option<OsString>, path: Option<OsString>) -> Result<PathBuf, VideoError> {
    // Without a folder in it, a name would be looked for on `PATH` once more.
    let program = |file: PathBuf| std::path::absolute(&file).ok().filter(|file| is_program(file));
    if let Some(named) = named.filter(|named| !named.is_empty()).map(PathBuf::from) {
        return program(named.clone()).ok_or(VideoError::NoProgram { named });
    }
    let folders = path.iter().flat_map(std::env::split_paths).filter(|folder| !folder.as_os_str().is_empty());
    folders.map(|folder| folder.join("ffmpeg")).find_map(program).ok_or(VideoError::NoFfmpeg)
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// What is wrong, of its last words: the last line that says so, without who says it (`[mov @ 0x55...]`).
fn reason(last_words: &str) -> Option<String> {
    let told = |mut line: &str| {
        while let Some((_, rest)) = line.trim().strip_prefix('[').and_then(|line| line.split_once("] ")) {
            line = rest;
        }
        line.trim().to_owned()
    };
    let lines: Vec<String> = last_words.lines().map(told).filter(|line| !line.is_empty()).collect();
    let farewell = |line: &&String| FAREWELLS.iter().any(|words| line.starts_with(words));
    lines.iter().rfind(|line| !farewell(line)).or(lines.last()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_named_comes_before_the_first_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (place, mode) in [("text", 0o644), ("one", 0o755), ("two", 0o755)] {
            std::fs::create_dir(at(place)).unwrap();
            std::fs::write(at(place).join("ffmpeg"), "").unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(at(place).join("ffmpeg"), mode).unwrap();
        }
        let path =
            std::env::join_paths([at("nothing"), at("text"), "".into(), at("one"), at("two")]).unwrap();
        let found = |named: &str| find(Some(named.into()), Some(path.clone()));
        assert_eq!(find(None, Some(path.clone())).unwrap(), at("one/ffmpeg"));
        assert_eq!(found("").unwrap(), at("one/ffmpeg"));
        assert_eq!(found(at("two/ffmpeg").to_str().unwrap()).unwrap(), at("two/ffmpeg"));
        for wrong in ["text/ffmpeg", "two", "nothing/ffmpeg"] {
            let error = found(at(wrong).to_str().unwrap()).unwrap_err();
            assert!(matches!(&error, VideoError::NoProgram { named } if *named == at(wrong)), "{error}");
        }
        let nowhere = find(None, Some(at("text").into_os_string()));
        assert!(
            matches!(nowhere, Err(VideoError::NoFfmpeg))
                && matches!(find(None, None), Err(VideoError::NoFfmpeg))
        );
    }

    #[test]
    fn of_its_last_words_those_are_told_that_say_what_is_wrong() {
        for (words, told) in [
            ("", None),
            ("\n", None),
            (
                "[in#0 @ 0x55] moov atom not found\n[in#0 @ 0x56] Error opening input: Invalid data\nError opening input files: Invalid data\n",
                Some("moov atom not found"),
            ),
            (
                "[mov,mp4 @ 0x5] [eia @ 0x6] moov atom not found\nfile:a.mp4: Invalid data found\n",
                Some("file:a.mp4: Invalid data found"),
            ),
            ("[h264 @ 0x5] no frame!\nConversion failed!\n", Some("no frame!")),
            ("Conversion failed!\n", Some("Conversion failed!")),
        ] {
            assert_eq!(reason(words).as_deref(), told);
        }
    }

    #[test]
    fn what_a_program_does_instead_is_told() {
        let of = |program: &str| Ffmpeg { program: program.into(), patience: Duration::from_secs(60) };
        let video = Path::new("a.mp4");
        // It echoes its arguments, which are no thumbnails.
        let told = [of("/bin/echo").count(video), of("/bin/false").count(video), of("/no/such").count(video)];
        let [strange, refused, missing] = told.map(Result::unwrap_err);
        assert!(matches!(strange, VideoError::Strange { .. }) && strange.is_of_the_machine(), "{strange}");
        assert_eq!(refused.to_string(), "ffmpeg cannot decode it: exit code 1");
        assert!(matches!(missing, VideoError::System { .. }) && !refused.is_of_the_machine(), "{missing}");
        assert!(matches!(of("/bin/echo").version(), Err(VideoError::Strange { .. })));
        let frames = |program| of(program).frames(video, (&[0], 1), |_| Ok(())).unwrap_err().to_string();
        assert_eq!(frames("/bin/echo"), "a.mp4: /bin/echo writes something else than frames");
        assert_eq!(frames("/bin/false"), "a.mp4: ffmpeg cannot decode it: exit code 1");
        assert!(frames("/bin/true").ends_with("fewer when they were read"));
    }
}
