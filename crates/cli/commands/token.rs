//! `dtrain token`: the secret that the hosts of a cluster share.

use super::print;
use crate::arguments::Token as Arguments;
use crate::error::CliError;
use dtrain_transport::quic::Token;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// Makes a token.
///
/// *Errors*: the file exists or cannot be written.
pub fn run(arguments: &Arguments) -> Result<(), CliError> {
    let Arguments::New { output } = arguments;
    let text = format!("{}\n", Token::generate().reveal());
    let Some(path) = output else { return print(&text) };
    // A token that is in use is not lost by a slip: no file is written over.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all())).map_err(
        |error| {
            CliError::usage(format!("cannot write {}", path.display()))
                .because(&error)
                .hint("name a file that is not there yet")
        },
    )
}
