//! `dtrain eval`: how good a trained model is, on the validation part or on new data with labels.

use super::{print, print_json};
use crate::arguments::Eval;
use crate::error::CliError;
use crate::evaluate::{ClassFigures, ValueFigures, classes_csv, confusion_csv, confusion_svg};
use crate::id_files::ids_in_passing;
use crate::plan::Plan;
use crate::predict::{Input, Predicted, Unit, Worker, at_once, ordered, progress};
use crate::report::{Stream, Voice, amount, held_out_groups, loss, measure, notes_of_cuts, percent};
use crate::trained::Trained;
use crate::whole_file::WholeFile;
use dtrain_data::{
    Batch, DataError, Dataset, Elements, EvaluationPlan, HeldOutGroups, ImageFiles, Preparation, RowParser,
    Source, TargetArray, TargetSpec, TextOptions, TokensOptions, mask_of,
};
use dtrain_engine::device::LossSums;
use dtrain_engine::{Areas, BatchView, EvaluationCounts, Inputs, Targets};
use dtrain_types::MicroBatch;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The widest confusion matrix that a terminal has room for. *Units*: classes.
const SHOWN: usize = 20;

/// The folder of what was measured on the part that training held out.
const VALIDATION: &str = "validation";

/// What the samples came to.
enum Figures {
    Classes(ClassFigures),
    Values(ValueFigures),
    /// Of a text: the loss of its tokens.
    Tokens {
        loss: f64,
        accuracy: f64,
        tokens: u64,
    },
}

/// Measures, shows and writes.
///
/// *Errors*: of the data, by file and line. *Blocks* to the end.
pub fn run(arguments: &Eval) -> Result<(), CliError> {
    let trained = Trained::open(&arguments.run)?;
    let voice = Voice::of(arguments.output);
    trained.say_notes(voice);
    let batch = at_once(&trained.preparation, arguments.work.batch);
    let workers = Worker::several(&trained, &arguments.work, batch, |words| voice.say(words))?;
    let tokens = matches!(trained.preparation.target, TargetSpec::ClassPerToken { .. });
    let (figures, groups) = match &arguments.data {
        Some(path) if tokens => (of_text(&trained, arguments, path, workers)?, None),
        Some(path) => (of_file(&trained, arguments, path, workers)?, None),
        None => of_validation(&trained, workers, batch, voice)?,
    };
    let measured = Measured { figures, groups, data: arguments.data.as_deref() };
    let folder = write(&trained, &measured)?;
    match arguments.output.json {
        true => print_json(&as_json(&trained, &measured)),
        false if arguments.output.quiet => Ok(()),
        false => print(&shown(&trained, &measured, &folder)),
    }
}

/// What was measured, and on what.
struct Measured<'a> {
    figures: Figures,
    /// Which groups the samples are of, where whole groups were held out.
    groups: Option<HeldOutGroups>,
    /// A file of its own; none: the part that training held out.
    data: Option<&'a Path>,
}

/// A table with the column of the target, or an array with a file of targets.
fn of_file(
    trained: &Trained,
    arguments: &Eval,
    path: &Path,
    workers: Vec<Worker>,
) -> Result<Figures, CliError> {
    let voice = Voice::of(arguments.output);
    if (trained.preparation.picture.is_some() || trained.preparation.clip.is_some())
        && (path.is_dir() || ImageFiles::is_archive(path))
    {
        return of_folder(trained, arguments, path, workers, voice);
    }
    let mut input = Input::open(path, &trained.preparation, trained.config.data.as_ref(), None)?;
    if let Some(windows) = input.windows() {
        let message = match (windows.labels(), &arguments.targets) {
            (Some(_), None) => return of_table(trained, input, path, None, workers, voice),
            (_, Some(_)) => format!("{} is recordings, and --targets is for arrays", path.display()),
            (None, None) => format!("{} has no column of the target", path.display()),
        };
        return Err(CliError::usage(message)
            .hint("the label of a window is that of its rows, or of y_*.txt; `dtrain predict` needs none"));
    }
    match (input.take_parser(), &arguments.targets) {
        (Some(parser), None) if parser.has_target() => {
            of_table(trained, input, path, Some(&parser), workers, voice)
        }
        (Some(_), None) => {
            let message = format!("{} has no column of the target", path.display());
            Err(CliError::usage(message).hint("`dtrain predict` is for samples without labels"))
        }
        (Some(_), Some(_)) => {
            let message = format!("{} is a table, and --targets is for arrays", path.display());
            Err(CliError::usage(message).hint("the target of a table is one of its columns"))
        }
        (None, None) if input.is_of_files() => {
            let error = CliError::usage(format!("{} does not say of which class it is", path.display()));
            Err(error.hint("name a folder that has one for each class; `dtrain predict` needs none"))
        }
        (None, None) => {
            let error = CliError::usage(format!("{} is an array without targets", path.display()));
            Err(error.hint("name the file that has them: --targets y.npy, or --labels labels-idx1-ubyte"))
        }
        (None, Some(targets)) => of_array(trained, input, (path, targets), workers, voice),
    }
}

/// Rows of a table, or windows of recordings, with the column of the target.
fn of_table(
    trained: &Trained,
    mut input: Input,
    path: &Path,
    parser: Option<&RowParser>,
    mut workers: Vec<Worker>,
    voice: Voice,
) -> Result<Figures, CliError> {
    let preparation = &trained.preparation;
    let counter = input.counter();
    let bar = progress(voice, input.size(), if counter.is_some() { Unit::Bytes } else { Unit::Samples });
    let mut figures = start(preparation)?;
    let lent: Vec<&mut Worker> = workers.iter_mut().collect();
    let work = |worker: &mut &mut Worker, piece| worker.predict(piece, parser);
    ordered(
        lent,
        || input.next_piece(),
        work,
        |predicted| {
            match &counter {
                Some(read) => bar.set_position(read.load(Ordering::Relaxed)),
                None => bar.inc(predicted.rows as u64),
            }
            add_labelled(&mut figures, &predicted, preparation, path)
        },
    )?;
    bar.finish_and_clear();
    Ok(figures)
}

/// An array of inputs and one of targets, of as many samples.
fn of_array(
    trained: &Trained,
    input: Input,
    (inputs_file, targets_file): (&Path, &Path),
    workers: Vec<Worker>,
    voice: Voice,
) -> Result<Figures, CliError> {
    let preparation = &trained.preparation;
    let targets = TargetArray::open(targets_file, preparation)?;
    let inputs = input.size().unwrap_or(0);
    if inputs != targets.rows() {
        let (inputs_file, targets_file) = (inputs_file.to_owned(), targets_file.to_owned());
        let targets = targets.rows();
        return Err(DataError::CountMismatch { inputs_file, inputs, targets_file, targets }.into());
    }
    of_samples(trained, input, targets.samples(), workers, voice)
}

/// A folder of images with one for each class, or archives of images.
fn of_folder(
    trained: &Trained,
    arguments: &Eval,
    path: &Path,
    workers: Vec<Worker>,
    voice: Voice,
) -> Result<Figures, CliError> {
    if arguments.targets.is_some() {
        let is = if path.is_dir() { "a folder" } else { "an archive" };
        let message = format!("{} is {is}, and --targets is for arrays", path.display());
        return Err(CliError::usage(message).hint("the class of an image is the name of its folder"));
    }
    let (images, classes) = ImageFiles::labelled(path, &trained.preparation)?;
    let classes: Vec<[f64; 1]> = classes.into_iter().map(|class| [f64::from(class)]).collect();
    of_samples(trained, Input::of_images(images), classes.iter().map(<[f64; 1]>::as_slice), workers, voice)
}

/// Samples whose targets are known, in their order.
fn of_samples<'a>(
    trained: &Trained,
    mut input: Input,
    mut samples: impl Iterator<Item = &'a [f64]>,
    workers: Vec<Worker>,
    voice: Voice,
) -> Result<Figures, CliError> {
    let preparation = &trained.preparation;
    let bar = progress(voice, input.size(), Unit::Samples);
    let mut figures = start(preparation)?;
    let work = |worker: &mut Worker, piece| worker.predict(piece, None);
    ordered(
        workers,
        || input.next_piece(),
        work,
        |predicted| {
            bar.inc(predicted.rows as u64);
            let outputs = predicted.outputs.chunks_exact(predicted.outputs.len() / predicted.rows.max(1));
            for (outputs, targets) in outputs.zip(&mut samples) {
                match &mut figures {
                    Figures::Classes(figures) => figures.add(targets[0] as usize, outputs),
                    Figures::Values(figures) => {
                        let restored =
                            (0..).zip(outputs).map(|(at, output)| preparation.restore(at, *output));
                        figures.add(targets.iter().copied().zip(restored));
                    }
                    Figures::Tokens { .. } => {}
                }
            }
            Ok(())
        },
    )?;
    bar.finish_and_clear();
    Ok(figures)
}

fn start(preparation: &Preparation) -> Result<Figures, CliError> {
    Ok(match preparation.target {
        TargetSpec::Class { classes } => Figures::Classes(ClassFigures::new(classes as usize)),
        TargetSpec::Values { width } => Figures::Values(ValueFigures::new(width)),
        TargetSpec::ClassPerToken { .. } => unreachable!("a text is told apart"),
    })
}

fn add_labelled(
    figures: &mut Figures,
    predicted: &Predicted,
    preparation: &Preparation,
    path: &Path,
) -> Result<(), CliError> {
    let labels = predicted.targets.iter().zip(&predicted.lines);
    let width = predicted.outputs.len() / predicted.rows.max(1);
    for ((label, line), outputs) in labels.zip(predicted.outputs.chunks_exact(width.max(1))) {
        let wrong = |problem: String, hint: &str| {
            CliError::usage(format!("{} line {line}: {problem}", path.display())).hint(hint)
        };
        match figures {
            Figures::Classes(figures) => {
                let class = class_of(label, preparation);
                let class = class.ok_or_else(|| match label.is_empty() {
                    true => wrong("the label is missing".to_owned(), "write it, or leave the row out"),
                    false => {
                        let known: Vec<String> = (0..figures.classes().min(SHOWN))
                            .map(|class| preparation.class_name(class))
                            .collect();
                        let hint =
                            format!("the model knows {}; correct it, or leave the row out", known.join(", "));
                        wrong(format!("{label:?} is no class of the training table"), &hint)
                    }
                })?;
                figures.add(class, outputs);
            }
            Figures::Values(figures) => {
                let target: f64 = label.parse().map_err(|_| match label.is_empty() {
                    true => wrong("the target is missing".to_owned(), "write it, or leave the row out"),
                    false => wrong(
                        format!("the target {label:?} is not a number"),
                        "correct it, or leave the row out",
                    ),
                })?;
                figures.add([(target, preparation.restore(0, outputs[0]))]);
            }
            Figures::Tokens { .. } => {}
        }
    }
    Ok(())
}

/// The class that a label names, by its name or as a number.
fn class_of(label: &str, preparation: &Preparation) -> Option<usize> {
    let names = &preparation.class_names;
    names.iter().position(|name| name == label).or_else(|| {
        let number: f64 = label.parse().ok()?;
        let as_name = format!("{number:.0}");
        (number.fract() == 0.0).then(|| names.iter().position(|name| *name == as_name))?
    })
}

/// The part that training held out.
fn of_validation(
    trained: &Trained,
    workers: Vec<Worker>,
    batch: u32,
    voice: Voice,
) -> Result<(Figures, Option<HeldOutGroups>), CliError> {
    let mut plan = Plan::open(&trained.config, None)?;
    let groups = plan.opened.groups.take();
    if !plan.preparation().is_that_of(&trained.preparation) {
        let run = trained.run.path.display();
        let error = CliError::usage(format!("the data of {run} have changed since it was trained"));
        return Err(error.hint("put the files back, or measure on other samples with labels: --data test.csv, or --data x.npy --targets y.npy"));
    }
    let Some(val) = plan.opened.val.clone() else {
        let error = CliError::usage(format!("{} held nothing out", trained.run.path.display()));
        return Err(error.hint("give samples with labels: --data test.csv, or --data x.npy --targets y.npy"));
    };
    let micro = EvaluationPlan::new(val.len(), batch);
    let bar = progress(voice, Some(val.len()), Unit::Samples);
    let next = {
        let mut numbers = 0..micro.micro_batches();
        move || Ok(numbers.next().map(MicroBatch))
    };
    let workers: Vec<(Worker, Batch)> =
        workers.into_iter().map(|worker| (worker, micro.batch(val.as_ref()))).collect();
    if let TargetSpec::ClassPerToken { classes } = trained.preparation.target {
        return Ok((of_tokens(&val, micro, workers, classes as usize, next)?, groups));
    }
    let mut figures = start(&trained.preparation)?;
    let work = |(worker, batch): &mut (Worker, Batch), at| {
        micro.read(val.as_ref(), at, batch)?;
        let Elements::F32(values) = batch.inputs() else { unreachable!("tokens were told apart") };
        let outputs = worker.outputs_of(values)?;
        let targets = match batch.targets() {
            Elements::U32(classes) => classes.iter().map(|class| *class as f32).collect(),
            Elements::F32(values) => values.to_vec(),
        };
        Ok((outputs, targets, batch.rows()))
    };
    ordered(workers, next, work, |(outputs, targets, rows): (Vec<f32>, Vec<f32>, usize)| {
        bar.inc(rows as u64);
        let each = outputs.chunks_exact(outputs.len() / rows).zip(targets.chunks_exact(targets.len() / rows));
        for (outputs, targets) in each {
            match &mut figures {
                Figures::Classes(figures) => figures.add(targets[0] as usize, outputs),
                Figures::Values(figures) => {
                    let restored = |(at, (target, output)): (usize, (&f32, &f32))| {
                        (trained.preparation.restore(at, *target), trained.preparation.restore(at, *output))
                    };
                    figures.add(targets.iter().zip(outputs).enumerate().map(restored));
                }
                Figures::Tokens { .. } => {}
            }
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok((figures, groups))
}

/// A text, or a file of token ids, cut into windows as the training text was. A rest that is shorter than a window is left out.
fn of_text(
    trained: &Trained,
    arguments: &Eval,
    path: &Path,
    workers: Vec<Worker>,
) -> Result<Figures, CliError> {
    if arguments.targets.is_some() {
        let error = CliError::usage("the model was trained on a text, whose targets are its own tokens");
        return Err(error.hint("leave --targets out"));
    }
    let TargetSpec::ClassPerToken { classes } = trained.preparation.target else {
        unreachable!("a text has a class per token")
    };
    let voice = Voice::of(arguments.output);
    let made = ids_in_passing(trained, path, voice)?;
    let (given, path) = (path, made.as_ref().map_or(path, |(_, ids)| ids).to_owned());
    let batch = at_once(&trained.preparation, arguments.work.batch);
    let source = match trained.config.data.clone() {
        Some(Source::Text(options)) => {
            Source::Text(TextOptions { path: path.clone(), val_split: 0.0, ..options })
        }
        Some(Source::Tokens(options)) => {
            // Whatever tokenizer lies beside it.
            let vocabulary = Some(classes);
            let path = path.clone();
            // And by itself, whatever shared a sample in training.
            let options = TokensOptions { packing: false, ..options };
            Source::Tokens(TokensOptions { path, val_path: None, vocabulary, val_split: 0.0, ..options })
        }
        _ => return Err(CliError::usage("the model was not trained on a text or on token ids")),
    };
    let opened = dtrain_data::open(&source).map_err(|error| {
        let given = given.display().to_string();
        let of = |error: CliError, file: &Path| error.renaming(&file.display().to_string(), &given);
        of(of(error.into(), &path), &mask_of(&path))
    })?;
    opened.examples.iter().flat_map(notes_of_cuts).for_each(|note| voice.say(&format!("note: {note}")));
    let text = opened.train;
    let micro = EvaluationPlan::new(text.len(), batch);
    let mut numbers = 0..micro.micro_batches();
    let next = move || Ok(numbers.next().map(MicroBatch));
    let workers = workers.into_iter().map(|worker| (worker, micro.batch(text.as_ref()))).collect();
    of_tokens(&text, micro, workers, classes as usize, next)
}

fn of_tokens(
    val: &Arc<dyn Dataset>,
    micro: EvaluationPlan,
    workers: Vec<(Worker, Batch)>,
    classes: usize,
    next: impl FnMut() -> Result<Option<MicroBatch>, CliError> + Send,
) -> Result<Figures, CliError> {
    let work = |(worker, batch): &mut (Worker, Batch), at| {
        micro.read(val.as_ref(), at, batch)?;
        let (Elements::U32(tokens), Elements::U32(targets)) = (batch.inputs(), batch.targets()) else {
            unreachable!("a text is tokens")
        };
        let view = BatchView {
            rows: batch.rows(),
            inputs: Inputs::Tokens(tokens),
            targets: Targets::Classes(targets),
        };
        worker.evaluate(&view, &mut EvaluationCounts::new(classes))
    };
    let (mut loss, mut weight, mut right, mut tokens) = (0.0, 0.0, 0u64, 0u64);
    ordered(workers, next, work, |sums: LossSums| {
        loss += sums.loss;
        weight += sums.weight;
        right += sums.correct;
        tokens += sums.counted;
        Ok(())
    })?;
    Ok(Figures::Tokens { loss: loss / weight, accuracy: right as f64 / tokens.max(1) as f64, tokens })
}

fn names(preparation: &Preparation, figures: &ClassFigures) -> Vec<String> {
    (0..figures.classes()).map(|class| preparation.class_name(class)).collect()
}

/// Writes what is too wide for a terminal into the folder of the run; gives where.
fn write(trained: &Trained, measured: &Measured<'_>) -> Result<PathBuf, CliError> {
    let data = measured.data;
    let stem = data.and_then(Path::file_stem).map(|stem| stem.to_string_lossy());
    // A file of that name is not the part that the run held out.
    let name = match (stem, data.and_then(Path::file_name)) {
        (None, _) => VALIDATION.into(),
        (Some(stem), Some(name)) if stem == VALIDATION => format!("{}-data", name.to_string_lossy()).into(),
        (Some(stem), _) => stem,
    };
    let folder = trained.run.path.join("eval").join(&*name);
    let put = |file: &str, text: &str| {
        let mut file = WholeFile::create(&folder.join(file))?;
        file.write(text.as_bytes())?;
        file.finish()
    };
    std::fs::create_dir_all(&folder)
        .map_err(|error| CliError::failed(format!("cannot make {}", folder.display())).because(&error))?;
    put("figures.json", &format!("{:#}\n", as_json(trained, measured)))?;
    if let Figures::Classes(figures) = &measured.figures {
        let names = names(&trained.preparation, figures);
        put("confusion.csv", &confusion_csv(figures, &names))?;
        put("classes.csv", &classes_csv(figures, &names))?;
        put("confusion.svg", &confusion_svg(figures, &names))?;
    }
    Ok(folder)
}

fn as_json(trained: &Trained, measured: &Measured<'_>) -> serde_json::Value {
    let about = json!({"run": trained.run.path, "checkpoint": trained.id.to_string()});
    let about = match &measured.groups {
        Some(groups) => merged(about, json!({"groups": groups.names})),
        None => about,
    };
    let rest = match &measured.figures {
        Figures::Classes(figures) => {
            let names = names(&trained.preparation, figures);
            let classes = names.iter().enumerate().map(|(class, name)| {
                let row = figures.row(class);
                let about = json!({"class": name, "precision": row.precision, "recall": row.recall, "f1": row.f1, "samples": row.samples});
                merged(about, areas(row.areas))
            });
            let all = json!({
                "samples": figures.samples(), "loss": figures.loss(), "accuracy": figures.accuracy(),
                "macro_f1": figures.macro_f1(), "classes": classes.collect::<Vec<_>>(),
            });
            merged(all, areas(figures.mean_areas()))
        }
        Figures::Values(figures) => {
            let rows = figures.rows();
            let row =
                |row: &crate::evaluate::ValueRow| json!({"rmse": row.rmse, "mae": row.mae, "r2": row.r2});
            match &rows[..] {
                [only] => merged(json!({"samples": figures.samples()}), row(only)),
                _ => {
                    json!({"samples": figures.samples(), "targets": rows.iter().map(row).collect::<Vec<_>>()})
                }
            }
        }
        Figures::Tokens { loss, accuracy, tokens } => {
            json!({"tokens": tokens, "loss": loss, "perplexity": loss.exp(), "accuracy": accuracy})
        }
    };
    merged(about, rest)
}

/// The areas under the curves of classes, where there are any.
fn areas(of: Option<Areas>) -> serde_json::Value {
    of.map_or_else(|| json!({}), |of| json!({"auc": of.roc, "average_precision": of.average_precision}))
}

fn merged(mut one: serde_json::Value, other: serde_json::Value) -> serde_json::Value {
    if let (Some(one), serde_json::Value::Object(other)) = (one.as_object_mut(), other) {
        one.extend(other);
    }
    one
}

fn shown(trained: &Trained, measured: &Measured<'_>, folder: &Path) -> String {
    let mut text = String::new();
    let bold = |name: &str| Stream::Output.bold(&format!("{name:<9}"));
    let of = measured.data.map_or("the validation part".to_owned(), |path| path.display().to_string());
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  {} checkpoint {} of {} on {of}",
        bold("model"),
        trained.id,
        trained.run.path.display()
    );
    if let Some(groups) = &measured.groups {
        let _ = writeln!(text, "  {} {}", bold("groups"), held_out_groups(groups));
    }
    match &measured.figures {
        Figures::Classes(figures) => {
            let _ = writeln!(text, "  {} {}", bold("samples"), amount(figures.samples(), "sample"));
            let (accuracy, f1) = (percent(figures.accuracy()), figures.macro_f1());
            let _ = writeln!(
                text,
                "  {} accuracy {accuracy}, macro F1 {f1:.4}, loss {}{}",
                bold("result"),
                loss(figures.loss()),
                figures.mean_areas().map_or(String::new(), |areas| {
                    format!(", AUC {:.4}, average precision {:.4}", areas.roc, areas.average_precision)
                })
            );
            text += &class_table(figures, &names(&trained.preparation, figures));
        }
        Figures::Values(figures) => {
            let _ = writeln!(text, "  {} {}", bold("samples"), amount(figures.samples(), "sample"));
            let rows = figures.rows();
            for (at, row) in rows.iter().enumerate() {
                let name = if rows.len() == 1 { "result".to_owned() } else { format!("target {at}") };
                let r2 = row.r2.map_or("none".to_owned(), |r2| format!("{r2:.4}"));
                let _ = writeln!(
                    text,
                    "  {} RMSE {}, MAE {}, R2 {r2}",
                    bold(&name),
                    measure(row.rmse),
                    measure(row.mae)
                );
            }
        }
        Figures::Tokens { loss: value, accuracy, tokens } => {
            let _ = writeln!(text, "  {} {}", bold("tokens"), amount(*tokens, "token"));
            let (perplexity, share) = (measure(value.exp()), percent(*accuracy));
            let _ = writeln!(
                text,
                "  {} perplexity {perplexity}, loss {}, accuracy {share}",
                bold("result"),
                loss(*value)
            );
        }
    }
    let _ = writeln!(text, "  {} {}", bold("written"), folder.display());
    text
}

/// Classes with their figures, and how often each was called what.
fn class_table(figures: &ClassFigures, names: &[String]) -> String {
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(5, 24);
    let mut text = format!("\n  {:<width$}  precision  recall      F1  samples\n", "class");
    for (class, name) in names.iter().enumerate().take(SHOWN) {
        let row = figures.row(class);
        let (precision, recall) = (percent(row.precision), percent(row.recall));
        let _ = writeln!(
            text,
            "  {name:<width$}  {precision:>9}  {recall:>7}  {:.4}  {:>7}",
            row.f1, row.samples
        );
    }
    if names.len() > SHOWN {
        let _ = writeln!(text, "  and {} more, in classes.csv", names.len() - SHOWN);
        return text + "\n";
    }
    let most =
        (0..names.len()).flat_map(|a| (0..names.len()).map(move |b| figures.count(a, b))).max().unwrap_or(0);
    let cell =
        most.to_string().len().max(names.iter().map(|name| name.chars().count().min(6)).max().unwrap_or(1));
    let short = |name: &String| name.chars().take(cell).collect::<String>();
    let head: Vec<String> = names.iter().map(|name| format!("{:>cell$}", short(name))).collect();
    let _ = writeln!(text, "\n  {:<width$}  {}  (columns: what it was called)", "is", head.join(" "));
    for (target, name) in names.iter().enumerate() {
        let counts: Vec<String> =
            (0..names.len()).map(|called| format!("{:>cell$}", figures.count(target, called))).collect();
        let _ = writeln!(text, "  {name:<width$}  {}", counts.join(" "));
    }
    text + "\n"
}
