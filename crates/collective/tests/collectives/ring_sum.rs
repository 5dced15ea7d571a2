//! The sum around the ring as its definition says it.

use dtrain_collective::Chunks;

/// The sum around the ring, written as its definition, from what each rank had in slot 0.
pub fn around_the_ring(own: &[Option<Vec<f32>>], len: usize, add: impl Fn(f32, f32) -> f32) -> Vec<u32> {
    let world = own.len();
    let mut sum = vec![0u32; len];
    for owner in 0..world {
        for i in Chunks::even(len, world).chunk(owner) {
            let path = (1..=world).filter_map(|step| own[(owner + step) % world].as_ref().map(|own| own[i]));
            sum[i] = path.reduce(&add).expect("somebody contributes").to_bits();
        }
    }
    sum
}
