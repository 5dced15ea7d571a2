//! A vocabulary learnt from texts: pairs of bytes that often stand together become tokens, and pairs of those, as GPT-2's did.

use crate::error::TokenizerError;
use crate::tokenizer::{Tokenizer, fails};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Model, TokenizerBuilder};

/// What ends a text.
const END: &str = "<|endoftext|>";
/// The smallest vocabulary: the bytes, and what ends a text.
pub const FEWEST_TOKENS: u32 = 257;
/// A pair that is there once is worth no token.
const OFTEN_ENOUGH: u64 = 2;

/// Learns a vocabulary of at most `vocabulary` tokens: what ends a text, the bytes, and what stands most often in the texts. Any text has tokens by it. The same
/// texts in the same order give the same tokenizer, to the byte. *Blocks* while it computes on all cores; keeps each
/// different word in memory.
///
/// *Errors*: of the tokenizer.
///
/// *Panics* if `vocabulary` is below [`FEWEST_TOKENS`].
pub fn learn(
    texts: impl Iterator<Item = String> + Send,
    vocabulary: u32,
) -> Result<Tokenizer, TokenizerError> {
    assert!(vocabulary >= FEWEST_TOKENS, "a byte each, and the end");
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary as usize)
        .min_frequency(OFTEN_ENOUGH)
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let bytes = ByteLevel::new(false, true, true);
    let mut learnt = TokenizerBuilder::<BPE, tokenizers::NormalizerWrapper, _, _, _>::new()
        .with_model(BPE::default())
        .with_pre_tokenizer(Some(bytes))
        .with_post_processor(Some(bytes))
        .with_decoder(Some(bytes))
        .build()
        .map_err(fails)?;
    learnt.train(&mut trainer, texts).map_err(fails)?;
    debug_assert!(learnt.get_model().get_vocab_size() <= vocabulary as usize);
    Tokenizer::of(learnt.to_string(true).map_err(fails)?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "the cat sat on the mat, the cat sat\nand the cat sat\n";

    #[test]
    fn what_stands_together_often_is_a_token_and_any_text_has_some() {
        let learnt = learn([TEXT.to_owned()].into_iter(), 262).unwrap();
        assert_eq!((learnt.vocabulary(), learnt.end_of_text()), (262, Some((END, 0))));
        let ids = learnt.encode("the cat sat").unwrap();
        assert!(ids.len() < "the cat sat".len() - 4, "{ids:?}");
        for text in ["the cat sat", "", " ", "\u{1f600}\u{0}\u{e9}\r\n\t", "<|endoftext|>a"] {
            let ids = learnt.encode(text).unwrap();
            assert!(ids.iter().all(|id| *id < 262));
            assert_eq!(learnt.decode(&ids).unwrap(), text);
        }
        assert_eq!(learnt.encode("<|endoftext|>").unwrap(), [0]);
        // There is nothing more to learn.
        let all = learn([TEXT.to_owned()].into_iter(), 60_000).unwrap();
        assert!((262..400).contains(&all.vocabulary()), "{}", all.vocabulary());
        let bytes = learn(std::iter::empty(), FEWEST_TOKENS).unwrap();
        assert_eq!((bytes.vocabulary(), bytes.encode("\u{e9}").unwrap().len()), (FEWEST_TOKENS, 2));
    }

    #[test]
    fn the_same_texts_give_the_same_file_and_a_file_the_same_tokenizer() {
        let texts = || TEXT.split_inclusive('\n').map(str::to_owned).cycle().take(400);
        let learnt = learn(texts(), 280).unwrap();
        for _ in 0..4 {
            assert!(learn(texts(), 280).unwrap().bytes() == learnt.bytes());
        }
        let again = Tokenizer::of(learnt.bytes().to_vec()).unwrap();
        assert_eq!(again.encode(TEXT).unwrap(), learnt.encode(TEXT).unwrap());
    }
}
