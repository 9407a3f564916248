//! Chance, all of it out of one seed. Written out (SplitMix64), so that a seed means the same run for good.

#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`; 0 if that is 0.
    pub fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end.max(1))).unwrap_or(0)
    }

    pub fn between(&mut self, from: u32, to: u32) -> u32 {
        from + self.below(to - from + 1)
    }

    /// As between, for small numbers.
    pub fn few(&mut self, from: u8, to: u8) -> u8 {
        u8::try_from(self.between(from.into(), to.into())).unwrap_or(to)
    }

    /// Up to so much before, or after.
    pub fn skew(&mut self, most: u32) -> i64 {
        i64::from(self.below(2 * most + 1)) - i64::from(most)
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < per_mille
    }

    /// Any magnitude up to `most` is as likely as any other.
    pub fn magnitude(&mut self, most: u32) -> u32 {
        let bits = 32 - most.leading_zeros();
        let shift = self.below(bits);
        self.below((most >> shift).max(2))
    }
}
