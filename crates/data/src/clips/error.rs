//! Why a video cannot be decoded. Who has the error knows which video.
//!
//! Nothing is printed here; [`VideoError::hint`] says what a user can do about it.

use std::io;
use std::path::PathBuf;

/// Why a video cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VideoError {
    /// The program is nowhere on `PATH`.
    #[error("videos are decoded by ffmpeg, which is not on PATH")]
    NoFfmpeg,
    /// `DTRAIN_FFMPEG` names something else than a program.
    #[error("DTRAIN_FFMPEG={} is no program", named.display())]
    NoProgram {
        /// What it names.
        named: PathBuf,
    },
    /// The system cannot start the program, or cannot read what it writes.
    #[error("cannot run {}: {source}", program.display())]
    System {
        /// The program.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The program was killed, or crashed.
    #[error("ffmpeg was killed by signal {signal}")]
    Killed {
        /// The signal.
        signal: i32,
    },
    /// The program hung.
    #[error("ffmpeg gave nothing for {seconds} s and was killed")]
    Silent {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The second time it gave fewer frames than the first time.
    #[error("it had {counted} frames when they were counted, and fewer when they were read")]
    Changed {
        /// The frames that were counted.
        counted: usize,
    },
    /// What the program wrote is not what it was asked for.
    #[error("{} writes something else than frames", program.display())]
    Strange {
        /// The program.
        program: PathBuf,
    },
    /// The program says that the video is damaged or is none.
    #[error("ffmpeg cannot decode it: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
}

impl VideoError {
    /// Whether another try, or another machine, may come to something else: such a video is never left out, or ranks would train on
    /// different data.
    pub(crate) fn is_of_the_machine(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoFfmpeg => {
                "install ffmpeg, or name one with DTRAIN_FFMPEG=PATH; or write the frames into a folder of its own: \
                 ffmpeg -i VIDEO FOLDER/%06d.png; and move the video away"
            }
            Self::NoProgram { .. } | Self::Strange { .. } => {
                "name the program itself, such as DTRAIN_FFMPEG=/usr/bin/ffmpeg, or unset the variable: then it is looked for on PATH"
            }
            Self::System { .. } => "`dtrain doctor` tries the program; DTRAIN_FFMPEG=PATH names another one",
            Self::Killed { .. } => {
                "the machine may be short of memory, or the file may be damaged: try it with ffmpeg -i VIDEO -f null -"
            }
            Self::Silent { .. } => {
                "the disk may be slow, or the file may be damaged: try it with ffmpeg -i VIDEO -f null -"
            }
            Self::Changed { .. } => "leave the files alone while dtrain reads them",
            Self::Refused { .. } => {
                "the file may be damaged: mend or remove it, write what frames it has into a folder of its own (ffmpeg -i VIDEO FOLDER/%06d.png), \
                 or leave such files out with data.broken=skip"
            }
        }
        .to_owned()
    }
}
