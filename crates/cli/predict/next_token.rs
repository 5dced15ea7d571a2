//! What a model of texts says of a sequence: which token comes next.
//!
//! It does not know where sequences come from.

use super::format::Format;
use super::shares::probabilities;
use super::worker::Predicted;
use crate::csv_field::csv_field;
use crate::tokens::Tokens;
use serde_json::{Value, json};
use std::io::Write;

/// How many tokens a JSON line names.
const NAMED: usize = 5;

/// Turns the outputs after each token of a sequence into what is written of it.
#[derive(Clone, Debug)]
pub struct NextToken {
    /// What they are.
    pub tokens: Tokens,
    /// How many there are.
    pub vocabulary: usize,
    /// Of arrays whose sequences have so many tokens the outputs after each of them are written as an array; else those after
    /// the last one.
    pub time: Option<usize>,
}

impl NextToken {
    /// The first line of a CSV.
    #[must_use]
    pub fn head(&self) -> &'static str {
        "prediction,probability\n"
    }

    /// The shape of what an array has of one sequence.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        self.time.into_iter().chain([self.vocabulary]).collect()
    }

    /// What is written of some sequences.
    #[must_use]
    pub fn render(&self, predicted: &Predicted, format: Format) -> Vec<u8> {
        let (mut text, mut shares, mut rest) = (Vec::new(), Vec::new(), &predicted.outputs[..]);
        for length in &predicted.lengths {
            let (outputs, behind) = rest.split_at(length * self.vocabulary);
            rest = behind;
            let last = &outputs[outputs.len() - self.vocabulary..];
            if format == Format::Npy {
                let kept = if self.time.is_some() { outputs } else { last };
                kept.iter().for_each(|logit| text.extend(logit.to_le_bytes()));
                continue;
            }
            probabilities(last, &mut shares);
            let mut order: Vec<usize> = (0..self.vocabulary).collect();
            let named = NAMED.min(order.len());
            // Equal ones in the order of their ids.
            let greater = |a: &usize, b: &usize| last[*b].total_cmp(&last[*a]).then(a.cmp(b));
            if named < order.len() {
                order.select_nth_unstable_by(named, greater);
            }
            order.truncate(named);
            order.sort_unstable_by(greater);
            let share = |token: usize| shares[token] as f32;
            // Writing to memory cannot fail.
            let _ = if format == Format::Csv {
                writeln!(text, "{},{}", csv_field(&self.tokens.shown(order[0] as u32)), share(order[0]))
            } else {
                let next: Vec<Value> = order
                    .iter()
                    .map(|token| json!({"token": self.tokens.named_one(*token as u32), "probability": share(*token)}))
                    .collect();
                let (prediction, probability) = (self.tokens.named_one(order[0] as u32), share(order[0]));
                writeln!(
                    text,
                    "{}",
                    json!({"prediction": prediction, "probability": probability, "next": next})
                )
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_tokens_come_first_and_bytes_are_shown_as_text() {
        let mut outputs = vec![0.0f32; 2 * 256];
        outputs[usize::from(b'x')] = 9.0;
        (outputs[256 + 10], outputs[256 + 195], outputs[256 + 44]) = (3.0, 2.0, 2.0);
        let predicted = Predicted { outputs, lengths: vec![2], rows: 1, ..Predicted::default() };
        let next = NextToken { tokens: Tokens::Bytes, vocabulary: 256, time: None };
        let line = String::from_utf8(next.render(&predicted, Format::Jsonl)).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let tokens: Vec<&str> = (0..5).filter_map(|at| line["next"][at]["token"].as_str()).collect();
        assert_eq!(line["prediction"], "\\n");
        assert_eq!(tokens, ["\\n", ",", "\\xc3", "\\x00", "\\x01"]);
        let csv = String::from_utf8(next.render(&predicted, Format::Csv)).unwrap();
        assert!(csv.starts_with("\\n,0.0"), "{csv}");
        assert_eq!(next.render(&predicted, Format::Npy).len(), 4 * 256);
        let ids = NextToken { tokens: Tokens::Ids(256), time: Some(2), ..next };
        assert_eq!(ids.render(&predicted, Format::Npy).len(), 4 * 2 * 256);
        assert!(ids.render(&predicted, Format::Csv).starts_with(b"10,0.0"));
    }
}
