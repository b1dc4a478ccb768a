//! The state of draws as bytes, little-endian, so that a run that is resumed draws what it would have drawn. What is
//! read may be anything: a reader never takes more than is there.

#[derive(Debug, Default)]
pub struct Written(Vec<u8>);

impl Written {
    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn f64(&mut self, number: f64) {
        self.u64(number.to_bits());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u32s(&mut self, numbers: impl ExactSizeIterator<Item = u32>) {
        self.u64(numbers.len() as u64);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    pub(crate) fn f64s(&mut self, numbers: impl ExactSizeIterator<Item = f64>) {
        self.u64(numbers.len() as u64);
        numbers.for_each(|number| self.f64(number));
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// `None`: that is not what was written.
#[derive(Debug)]
pub struct Read<'a>(&'a [u8]);

impl<'a> Read<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Read<'a> {
        Read(bytes)
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let bytes = usize::try_from(self.u64()?).ok()?;
        self.take(bytes)
    }

    pub(crate) fn u32s(&mut self) -> Option<Vec<u32>> {
        let bytes = usize::try_from(self.u64()?).ok()?.checked_mul(4)?;
        let numbers = self.take(bytes)?.chunks_exact(4);
        numbers.map(|number| Some(u32::from_le_bytes(number.try_into().ok()?))).collect()
    }

    /// Ids of `samples` samples.
    pub(crate) fn ids(&mut self, samples: usize) -> Option<Vec<u32>> {
        self.u32s().filter(|ids| ids.iter().all(|id| (*id as usize) < samples))
    }

    pub(crate) fn f64s(&mut self) -> Option<Vec<f64>> {
        let bytes = usize::try_from(self.u64()?).ok()?.checked_mul(8)?;
        let numbers = self.take(bytes)?.chunks_exact(8);
        numbers.map(|number| Some(f64::from_le_bytes(number.try_into().ok()?))).collect()
    }

    /// One number each of `samples` samples, none of them below 0.
    pub(crate) fn scores(&mut self, samples: usize) -> Option<Vec<f64>> {
        let sound = |score: &f64| *score >= 0.0 && score.is_finite();
        self.f64s().filter(|scores| scores.len() == samples && scores.iter().all(sound))
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}
