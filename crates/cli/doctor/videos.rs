//! What videos need: ffmpeg, a program of its own. Without it everything but videos can be read.

use super::check::Check;
use dtrain_data::Ffmpeg;
use serde_json::json;

pub(super) fn check() -> Check {
    let nothing = json!({"path": null, "version": null});
    let only = "only videos (data.kind: clips) need it";
    let ffmpeg = match Ffmpeg::find() {
        Ok(ffmpeg) => ffmpeg,
        Err(error) => {
            let hint = format!("{only}; {}", error.hint());
            return Check::missing("ffmpeg", error.to_string()).hint(hint).details(nothing);
        }
    };
    let path = ffmpeg.program().display().to_string();
    match ffmpeg.version() {
        Ok(version) => Check::ok("ffmpeg", format!("{version} at {path}"))
            .details(json!({"path": path, "version": version})),
        Err(error) => Check::missing("ffmpeg", format!("{path} does not tell its version: {error}"))
            .hint(format!("{only}; DTRAIN_FFMPEG=PATH names another one"))
            .details(json!({"path": path, "version": null})),
    }
}
