//! A sweep without the rest of dtrain: `sweep A B` runs the seeds A..B, `sweep N` tells the story of one.

use dtrain_sim::{Faults, Settings, simulate};
use dtrain_simulations::{Limit, Sweep, sweep};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let quiet = words.iter().any(|word| word == "none");
    let faults = if quiet { Faults::none() } else { Faults::all() };
    let Some(first) = number(0) else { return eprintln!("sweep FIRST [END]") };
    let settings = Settings { faults, ..Settings::of(first) };
    std::panic::set_hook(Box::new(|_| {}));
    let Some(end) = number(1) else {
        let report = simulate(&Settings { story: true, ..settings });
        for line in &report.story {
            println!("{line}");
        }
        println!(
            "{:016x} {} events {} generations {:.3} s",
            report.trace, report.events, report.generations, report.seconds
        );
        println!("{:?} {:?}", report.violations, report.outcome);
        return;
    };
    let tally = sweep(&Sweep { settings, limit: Limit::Seeds(end - first), threads: 2, most_found: 40 });
    println!("{}", tally.coverage.render());
    for found in &tally.found {
        let text: String = found.violations[0].text.chars().take(220).collect();
        println!("{} {} {text}", found.seed, found.violations[0].invariant);
    }
    println!(
        "{} seeds, {} found, {:.0} a minute, {} events, {} generations, fault-free {}",
        tally.seeds(),
        tally.found.len(),
        tally.pace(),
        tally.events,
        tally.generations,
        tally.coverage.runs[1]
    );
}
