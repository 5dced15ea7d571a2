//! `dtrain chat`: a conversation with a trained model.

use crate::arguments::Chat;
use crate::config::CudaList;
use crate::error::CliError;
use crate::generate::{Page, Scribe, Talk, Wanted};
use crate::report::{Voice, amount};
use crate::tokens::Tokens;
use crate::trained::{Seat, Trained};
use console::style;
use dtrain_types::Seed;
use serde_json::json;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Instant;

/// Of what a model sees, what an answer has room in at least, however much is said before: a quarter.
const ROOM: usize = 4;
const SIGN: &str = ">";
const AGAIN: &str = "/new";
const END: &str = "/exit";

/// Reads questions from standard input, a line each, and answers them on standard output, as answers come.
///
/// *Errors*: a model that learnt from no conversations; of the model or its device. *Blocks* until there is no question more.
pub fn run(arguments: &Chat) -> Result<(), CliError> {
    let trained = Trained::open(&arguments.run)?;
    let voice = Voice::of(arguments.output);
    trained.say_notes(voice);
    let tokens = Tokens::of_texts(&trained)?;
    let context = trained.preparation.spec().input_width();
    let mut talk = Talk::new(&tokens, context, arguments.system.as_deref())?;
    let gpus = trained.gpus(&arguments.devices, |words| voice.say(words))?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let gpu = gpus.as_ref().map(CudaList::numbers).and_then(|gpus| gpus.first());
    let whole = trained.whole()?;
    let mut scribe = Scribe::new(&trained, &whole, gpu.map_or(Seat::Cores(cores), |gpu| Seat::Gpu(*gpu)), 1);
    let is_talk = io::stdin().is_terminal() && io::stdout().is_terminal() && !arguments.output.json;
    if is_talk {
        voice.say(&format!(
            "{} of {}; {AGAIN} begins anew, {END} ends",
            trained.id,
            trained.run.path.display()
        ));
    }
    let mut page = Page::new(tokens.clone());
    let room = (arguments.tokens as usize).min(context / ROOM).max(1);
    let mut lines = io::stdin().lock().lines();
    for number in 0.. {
        let Some(question) = next(&mut lines, &mut talk, is_talk.then_some(SIGN))? else { break };
        let asked = match talk.ask(question.clone(), room) {
            Err(error) if is_talk => {
                error.say();
                continue;
            }
            asked => asked?,
        };
        if asked.forgotten > 0 {
            let what = amount(asked.forgotten as u64, "question");
            voice.say(&format!("note: {what} from the beginning forgotten: the model sees {context} tokens"));
        }
        let from = asked.prompt.len();
        let left = u32::try_from(context - from).unwrap_or(u32::MAX);
        let wanted = Wanted {
            prompt: asked.prompt,
            tokens: arguments.tokens.min(left),
            sampling: arguments.drawing.sampling(),
            seed: Seed(arguments.drawing.seed),
            end: tokens.end(),
        };
        let begun = Instant::now();
        let written = scribe.write(&wanted, number..number + 1, |newest| match arguments.output.json {
            true => Ok(()),
            false => page.put(newest),
        });
        // Whoever has read enough is no error.
        if page.is_unread() {
            return Ok(());
        }
        let text = written?.remove(0);
        let answer = &text.tokens[from..];
        let rate = answer.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        let said = talk.answered(answer)?;
        let shown = match arguments.output.json {
            true => page.line(&json!({
                "question": question,
                "answer": said,
                "ended": text.has_ended,
                "forgotten": asked.forgotten,
            })),
            false => page.end_of_line(),
        };
        if page.is_unread() {
            return Ok(());
        }
        shown?;
        if is_talk {
            voice.say(&format!("{} ({rate:.1} a second)", amount(answer.len() as u64, "token")));
        }
    }
    Ok(())
}

/// The next question, if there is one more; it is asked for by a sign.
fn next(
    lines: &mut impl Iterator<Item = io::Result<String>>,
    talk: &mut Talk,
    sign: Option<&str>,
) -> Result<Option<String>, CliError> {
    loop {
        if let Some(sign) = sign {
            eprint!("{} ", style(sign).for_stderr().bold());
            let _ = io::stderr().flush();
        }
        let Some(line) = lines.next() else { return Ok(None) };
        let line = line.map_err(|error| {
            let error = CliError::usage("cannot read standard input").because(&error);
            error.hint("a question is a line of UTF-8")
        })?;
        match line.trim() {
            "" => {}
            END => return Ok(None),
            AGAIN => talk.forget(),
            question => return Ok(Some(question.to_owned())),
        }
    }
}
