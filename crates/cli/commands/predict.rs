//! `dtrain predict`: what a trained model says of samples without labels.

use crate::arguments::Predict;
use crate::error::CliError;
use crate::predict::{Format, Input, NextToken, OutputLines, Unit, Worker, Writer, ordered, progress};
use crate::report::{Voice, amount};
use crate::tokens::Tokens;
use crate::trained::Trained;
use dtrain_data::TargetSpec;
use std::sync::atomic::Ordering;

/// Predicts and writes.
///
/// *Errors*: of the input, by file and line, or of the output; no file is half-written then. *Blocks* to the end.
pub fn run(arguments: &Predict) -> Result<(), CliError> {
    let trained = Trained::open(&arguments.run)?;
    trained.say_notes(if arguments.quiet { Voice::Quiet } else { Voice::here() });
    let preparation = &trained.preparation;
    let format = format_of(arguments)?;
    let tokens = Tokens::of(&trained)?;
    // All are looked at before the first is predicted.
    let inputs: Result<Vec<Input>, _> = arguments
        .inputs
        .iter()
        .map(|path| Input::open(path, preparation, trained.config.data.as_ref(), tokens.as_ref()))
        .collect();
    let inputs = inputs?;
    let shape = output_lines(&trained, (format, tokens), &inputs, arguments)?;
    let is_quiet = arguments.quiet || arguments.output.is_none();
    let voice = if is_quiet { Voice::Quiet } else { Voice::here() };
    let work = &arguments.work;
    let mut workers = Worker::several(&trained, work, work.batch, |words| voice.say(words))?;
    let mut writer = Writer::new(arguments.output.as_deref(), shape.clone())?;
    let begun = std::time::Instant::now();
    for mut input in inputs {
        let (parser, counter) = (input.take_parser(), input.counter());
        let unit = if counter.is_some() { Unit::Bytes } else { Unit::Samples };
        let bar = progress(voice, input.size(), unit);
        let lent: Vec<&mut Worker> = workers.iter_mut().collect();
        let work = |worker: &mut &mut Worker, piece| {
            let predicted = worker.predict(piece, parser.as_deref())?;
            Ok((predicted.rows, shape.render(&predicted)))
        };
        ordered(
            lent,
            || input.next_piece(),
            work,
            |(rows, text)| {
                match &counter {
                    Some(read) => bar.set_position(read.load(Ordering::Relaxed)),
                    None => bar.inc(rows as u64),
                }
                writer.add(rows, &text)
            },
        )?;
        bar.finish_and_clear();
    }
    let rows = writer.rows();
    writer.finish()?;
    if let Some(output) = &arguments.output {
        let (rate, id) = (rows as f64 / begun.elapsed().as_secs_f64().max(1e-9), trained.id);
        let samples = amount(rows, "sample");
        let path = output.display();
        voice.say(&format!(
            "{samples} predicted by {id} into {path} ({} a second)",
            amount(rate as u64, "sample")
        ));
    }
    Ok(())
}

fn format_of(arguments: &Predict) -> Result<Format, CliError> {
    let by_name = arguments.output.as_deref().map(|path| (path, Format::of(path)));
    match (arguments.format, by_name) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(Format::Csv),
        (None, Some((_, Some(format)))) => Ok(format),
        (None, Some((path, None))) => {
            let message = format!("the name {} does not say how to write", path.display());
            Err(CliError::usage(message).hint("end it with .csv, .jsonl or .npy, or give --format"))
        }
    }
}

/// What is written of each sample.
///
/// *Errors*: arrays of token ids whose outputs have no shape in common, which are to be one array.
fn output_lines(
    trained: &Trained,
    (format, tokens): (Format, Option<Tokens>),
    inputs: &[Input],
    arguments: &Predict,
) -> Result<OutputLines, CliError> {
    let preparation = &trained.preparation;
    let (TargetSpec::ClassPerToken { classes }, Some(tokens)) = (&preparation.target, tokens) else {
        let lines = OutputLines::new(format, preparation);
        let of_files = !inputs.is_empty() && inputs.iter().all(Input::is_of_files);
        let of_windows = !inputs.is_empty() && inputs.iter().all(|input| input.windows().is_some());
        return Ok(match (of_files, of_windows) {
            (true, _) => lines.of_files(),
            (false, true) => lines.of_windows(),
            (false, false) => lines,
        });
    };
    let time = inputs.first().and_then(Input::time);
    let odd = inputs.iter().position(|input| input.time() != time);
    if let (Some(odd), Format::Npy) = (odd, format) {
        let shown = |at: usize, input: &Input| match input.time() {
            Some(time) => format!("{} has sequences of {time} tokens", arguments.inputs[at].display()),
            None => format!("{} is a text", arguments.inputs[at].display()),
        };
        let (one, other) = (shown(0, &inputs[0]), shown(odd, &inputs[odd]));
        return Err(CliError::usage(format!("{one}, and {other}")).hint("predict them into an array each"));
    }
    let next = NextToken { tokens, vocabulary: *classes as usize, time };
    Ok(OutputLines::of_tokens(format, preparation, next))
}
