//! Reading and writing of numbers.

/// Why the content of an object cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// It ends too early.
    #[error("it is incomplete")]
    Short,
    /// It is something else.
    #[error("it is not an object of a volume")]
    Magic,
    /// It has another format.
    #[error("it has version {0} of the format")]
    Version(u32),
    /// Its content has changed.
    #[error("its checksum does not match")]
    Checksum,
    /// It belongs to another volume, epoch or number.
    #[error("it belongs elsewhere")]
    Place,
    /// A value that is never written.
    #[error("its {0} is invalid")]
    Value(&'static str),
}

/// The checksum of all structures.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Numbers at the front of a slice.
pub(crate) struct NumberReader<'a>(pub(crate) &'a [u8]);

impl<'a> NumberReader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Damaged> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Damaged> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

/// Checks the last four bytes, the checksum of those before them, and returns those.
pub(crate) fn verified(bytes: &[u8]) -> Result<&[u8], Damaged> {
    let end = bytes.len().checked_sub(4).ok_or(Damaged::Short)?;
    let (content, stored) = bytes.split_at(end);
    if checksum(content).to_le_bytes() != stored {
        return Err(Damaged::Checksum);
    }
    Ok(content)
}

/// Appends the checksum of all bytes.
pub(crate) fn seal(bytes: &mut Vec<u8>) {
    let sum = checksum(bytes);
    bytes.extend(sum.to_le_bytes());
}

/// Reads the first eight bytes: what it is, and the version of the format.
pub(crate) fn begin<'a>(
    bytes: &'a [u8],
    magic: &[u8; 4],
    version: u32,
) -> Result<NumberReader<'a>, Damaged> {
    let mut reader = NumberReader(bytes);
    if reader.bytes(4)? != magic {
        return Err(Damaged::Magic);
    }
    match reader.u32()? {
        found if found == version => Ok(reader),
        found => Err(Damaged::Version(found)),
    }
}
