//! The one error that reaches a user: what went wrong, why, and what to do about it.
//!
//! Every command returns it; only `main` prints it and turns its kind into an exit code.

use crate::config::{ConfigError, Origin, Problem};
use console::style;
use std::fmt::{self, Write};
use std::process::ExitCode;

/// Whose turn it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Training, or what was asked for, failed.
    Failed,
    /// The user has to change the command, the configuration or the files.
    Usage,
    /// Too few ranks are left.
    NotEnoughRanks,
    /// The user stopped it.
    Interrupted,
}

impl Kind {
    /// The exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotEnoughRanks => 3,
            Self::Interrupted => 130,
        }
    }
}

/// An error with its causes and hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    kind: Kind,
    problems: Vec<Problem>,
    causes: Vec<String>,
}

impl CliError {
    /// An error of this kind; lower case, no full stop.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, problems: vec![Problem::new(message)], causes: Vec::new() }
    }

    /// Something that the user has to change.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Something that went wrong on the way.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Adds the reason behind the message and the reasons behind that.
    #[must_use]
    pub fn because(mut self, cause: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(cause);
        while let Some(cause) = next {
            self = self.cause(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// Adds one reason; one that the line before it tells already is left out.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        let cause = cause.into();
        let before = self.causes.last().map_or(self.problems[0].message.as_str(), String::as_str);
        if !before.contains(&cause) {
            self.causes.push(cause);
        }
        self
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        let last = self.problems.last_mut().expect("an error has a problem");
        last.hint = Some(hint.into());
        self
    }

    /// Calls something by the name that a user knows.
    #[must_use]
    pub fn renaming(mut self, from: &str, to: &str) -> Self {
        for problem in &mut self.problems {
            problem.message = problem.message.replace(from, to);
        }
        self
    }

    /// What kind of error it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The exit code of a process that ends with it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.code())
    }

    /// Shows it on standard error. A reader that went away is no error of its own.
    pub fn say(&self) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), self.render().as_bytes());
    }

    /// The error as it is shown: message, place, causes, hints. Coloured where standard error is a terminal.
    #[must_use]
    pub fn render(&self) -> String {
        if self.kind == Kind::Interrupted {
            return self.render_interrupted();
        }
        let mut text = String::new();
        for problem in &self.problems {
            let word = style("error:").for_stderr().red().bold();
            // Writing to a string cannot fail.
            let _ = match &problem.key {
                Some(key) => writeln!(text, "{word} {}: {}", style(key).for_stderr().bold(), problem.message),
                None => writeln!(text, "{word} {}", problem.message),
            };
            place(&mut text, &problem.origin);
        }
        for cause in &self.causes {
            let _ = writeln!(text, "  {} {cause}", style("caused by:").for_stderr().dim());
        }
        for hint in (ConfigError { problems: self.problems.clone() }).hints() {
            let _ = writeln!(text, "{} {hint}", style("hint:").for_stderr().cyan().bold());
        }
        text
    }
}

impl CliError {
    /// Who stops a run made no mistake: one line says what is left and how to go on.
    fn render_interrupted(&self) -> String {
        let said = self.problems.iter().map(|problem| problem.message.as_str());
        let hints = self.problems.iter().filter_map(|problem| problem.hint.as_deref());
        let parts: Vec<&str> = said.chain(self.causes.iter().map(String::as_str)).chain(hints).collect();
        format!("{}\n", parts.join("; "))
    }
}

/// The line of the user's file with a mark under the value, or the argument.
fn place(text: &mut String, origin: &Origin) {
    let dim = |part: String| style(part).for_stderr().dim().to_string();
    let _ = match origin {
        Origin::Default => Ok(()),
        Origin::Argument(argument) => writeln!(text, "  {} {argument}", dim("-->".into())),
        Origin::File { source, line, column } => {
            let shown = source.text.lines().nth(line - 1).unwrap_or_default();
            let number = line.to_string();
            let margin = " ".repeat(number.len());
            let mark = " ".repeat(column - 1);
            writeln!(text, "  {} {}:{line}:{column}", dim("-->".into()), source.path.display())
                .and_then(|()| writeln!(text, "  {} {shown}", dim(format!("{number} |"))))
                .and_then(|()| {
                    writeln!(text, "  {} {mark}{}", dim(format!("{margin} |")), style("^").for_stderr().red())
                })
        }
    };
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&messages.join("\n"))
    }
}

impl std::error::Error for CliError {}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self { kind: Kind::Usage, problems: error.problems, causes: Vec::new() }
    }
}

impl From<Problem> for CliError {
    fn from(problem: Problem) -> Self {
        ConfigError::from(problem).into()
    }
}

impl From<dtrain_data::DataError> for CliError {
    /// Data is opened before anything is written: what is wrong with it is for the user to change.
    fn from(error: dtrain_data::DataError) -> Self {
        Self::usage(error.to_string()).hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Machine, Source};

    #[test]
    fn a_mistake_in_a_file_is_shown_with_its_line() {
        let text = "seed: 7\noptimizer:\n  lr: fast\n".to_owned();
        let source = Source { path: "a.yaml".into(), text };
        let error =
            Config::parse::<&str>(Some(source), &[], Machine { cores: 2, gpus: |_, _| 0 }).unwrap_err();
        let shown = console::strip_ansi_codes(&CliError::from(error).render()).into_owned();
        assert_eq!(
            shown,
            "error: optimizer.lr: expected a number above 0, got \"fast\"\n  --> a.yaml:3:7\n  3 |   lr: fast\n    \
             |       ^\nhint: optimizer.lr: peak learning rate\n"
        );
    }

    #[test]
    fn who_interrupts_a_run_reads_of_no_error() {
        let stopped = CliError::new(Kind::Interrupted, "interrupted after step 7: nothing is saved")
            .hint("start again");
        assert_eq!(stopped.render(), "interrupted after step 7: nothing is saved; start again\n");
        assert_eq!(stopped.kind().code(), 130);
    }

    #[test]
    fn causes_are_listed_once_and_the_hint_comes_last() {
        let inner = std::io::Error::other("no space left on device");
        let error =
            CliError::failed("cannot write runs/a").because(&inner).cause("no space left").hint("free some");
        let shown = console::strip_ansi_codes(&error.render()).into_owned();
        assert_eq!(
            shown,
            "error: cannot write runs/a\n  caused by: no space left on device\nhint: free some\n"
        );
        assert_eq!(error.kind().code(), 1);
    }
}
