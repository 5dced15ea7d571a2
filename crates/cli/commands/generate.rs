//! `dtrain generate`: a text that a trained model goes on with.

use crate::arguments::{Generate, Output};
use crate::config::CudaList;
use crate::error::CliError;
use crate::generate::{Page, Scribe, Talk, Text, Wanted, texts_at_once};
use crate::predict::{Unit, ordered, progress};
use crate::report::{Voice, amount};
use crate::tokens::{Tokens, given};
use crate::trained::{Seat, Trained};
use dtrain_types::Seed;
use serde_json::json;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Texts that take next to no longer than one where their tokens are computed at once.
const TOGETHER: u64 = 8;

/// Writes texts to standard output: one as it comes, several each when it is whole.
///
/// *Errors*: a model of something else, a prompt that it cannot read, of the model or its device. *Blocks* to the end.
pub fn run(arguments: &Generate) -> Result<(), CliError> {
    let trained = Trained::open(&arguments.run)?;
    let voice = Voice::of(arguments.output);
    trained.say_notes(voice);
    let tokens = Tokens::of_texts(&trained)?;
    let wanted = Wanted {
        prompt: match &arguments.chat {
            Some(asked) => {
                let question = String::from_utf8(given(Some(asked))?);
                let question = question.map_err(|_| CliError::usage("the question is no text of UTF-8"))?;
                let context = trained.preparation.spec().input_width();
                // What a terminal or `echo` puts behind it is not asked.
                let question =
                    if asked == "-" { question.trim_end_matches('\n').to_owned() } else { question };
                Talk::new(&tokens, context, arguments.system.as_deref())?.ask(question, 0)?.prompt
            }
            None => tokens.prompt(arguments.prompt.as_deref(), &arguments.ids)?,
        },
        tokens: arguments.tokens,
        sampling: arguments.drawing.sampling(),
        seed: Seed(arguments.drawing.seed),
        end: tokens.end(),
    };
    // Of a question its answer alone is shown.
    let hidden = match &arguments.chat {
        Some(_) => wanted.prompt.len(),
        None => wanted.prompt.len() - tokens.visible(&wanted.prompt).len(),
    };
    let gpus = trained.gpus(&arguments.work.devices, |words| voice.say(words))?;
    let seats = arguments.work.seats(gpus.as_ref().map(CudaList::numbers));
    let samples = u64::from(arguments.samples);
    // On cores the parameters are read from memory once for some texts.
    let each = if gpus.is_none() { TOGETHER } else { 1 };
    let busy = seats.len().min(samples.div_ceil(each) as usize);
    let threads = seats.len() / busy;
    let longest = wanted.prompt.len() + wanted.tokens as usize;
    let first = seats[0].map_or(Seat::Cores(threads), Seat::Gpu);
    let rows = texts_at_once(&trained, longest, first, arguments.work.batch)?;
    let rows = samples.div_ceil(busy as u64).min(rows.into());
    let whole = trained.whole()?;
    let scribe = |gpu: Option<u32>| {
        Scribe::new(&trained, &whole, gpu.map_or(Seat::Cores(threads), Seat::Gpu), rows as u32)
    };
    let mut scribes: Vec<Scribe<'_>> = seats.into_iter().take(busy).map(scribe).collect();
    let begun = Instant::now();
    let mut page = Page::new(tokens.clone());
    let written = match samples == 1 && !arguments.output.json {
        true => one(&mut scribes[0], &wanted, (&mut page, hidden)),
        false => {
            let shown = (&tokens, &mut page, hidden);
            several(scribes, &wanted, (0..samples, rows), arguments.output, shown)
        }
    };
    // Whoever has read enough (`| head`) is no error.
    if page.is_unread() {
        return Ok(());
    }
    let made = written?;
    let rate = made as f64 / begun.elapsed().as_secs_f64().max(1e-9);
    voice.say(&format!("{} by {} ({rate:.1} a second)", amount(made, "token"), trained.id));
    Ok(())
}

/// A text, as it comes; how many tokens were written.
fn one(
    scribe: &mut Scribe<'_>,
    wanted: &Wanted,
    (page, hidden): (&mut Page, usize),
) -> Result<u64, CliError> {
    page.put(&wanted.prompt[hidden..])?;
    let text = scribe.write(wanted, 0..1, |newest| page.put(newest))?;
    page.end()?;
    Ok(made(&text, wanted))
}

/// How many tokens of texts were written.
fn made(texts: &[Text], wanted: &Wanted) -> u64 {
    texts.iter().map(|text| (text.tokens.len() - wanted.prompt.len()) as u64).sum()
}

/// Texts, in the order of their numbers; how many tokens were written.
fn several(
    scribes: Vec<Scribe<'_>>,
    wanted: &Wanted,
    (mut all, rows): (Range<u64>, u64),
    output: Output,
    (tokens, page, hidden): (&Tokens, &mut Page, usize),
) -> Result<u64, CliError> {
    let mut count = 0;
    let bar =
        progress(Voice::of(output), Some((all.end - all.start) * u64::from(wanted.tokens)), Unit::Tokens);
    let next = || {
        let piece = all.start..(all.start + rows).min(all.end);
        all.start = piece.end;
        Ok((!piece.is_empty()).then_some(piece))
    };
    let is_over = AtomicBool::new(false);
    let work = |scribe: &mut Scribe<'_>, piece: Range<u64>| {
        let texts = scribe.write(wanted, piece.clone(), |newest| {
            bar.inc(newest.len() as u64);
            match is_over.load(Ordering::Relaxed) {
                true => Err(CliError::failed("nobody reads it any more")),
                false => Ok(()),
            }
        })?;
        Ok((piece, texts))
    };
    let written = ordered(scribes, next, work, |(piece, texts)| {
        count += made(&texts, wanted);
        bar.suspend(|| {
            for (number, text) in piece.zip(&texts) {
                match output.json {
                    true => page.line(&json_of(number, text, wanted, tokens)?)?,
                    false => page.put(&text.tokens[hidden..]).and_then(|()| page.end_of_several())?,
                }
            }
            Ok(())
        })
        .inspect_err(|_| is_over.store(true, Ordering::Relaxed))
    });
    bar.finish_and_clear();
    written.map(|()| count)
}

fn json_of(
    number: u64,
    text: &Text,
    wanted: &Wanted,
    tokens: &Tokens,
) -> Result<serde_json::Value, CliError> {
    let (prompt, behind) = text.tokens.split_at(wanted.prompt.len());
    let [prompt, behind] = tokens.named(tokens.visible(prompt), behind)?;
    Ok(json!({
        "sample": number,
        "prompt": prompt,
        "text": behind,
        "ended": text.has_ended,
        "seed": wanted.seed.0,
    }))
}
