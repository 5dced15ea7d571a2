//! `dtrain run` as its users meet it, judged from outside: by exit codes, by what the children find and write, by pids.
//! The programs are shell scripts, so that nothing else has to be installed. Each test is a promise of the guide's page on
//! `dtrain run`.

mod ending;
mod first_cause;
mod hosts;
mod job;
mod output;
mod starting;
