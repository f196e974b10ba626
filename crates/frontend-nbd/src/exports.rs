//! Volumes as NBD exports.

use forebay_frontend::{Clients, VolumeInfo};
use forebay_nbd::{ExportInfo, Exports};

pub(crate) fn export_of(volume: &VolumeInfo) -> ExportInfo {
    let mut export = ExportInfo::new(volume.id, volume.name.clone(), volume.size_bytes);
    export.description.clone_from(&volume.description);
    export.read_only = volume.read_only;
    // Misses are faster if the client sorts its requests for a rotational disk.
    export.rotational = volume.rotational;
    export.block_preferred = export.block_preferred.max(volume.block_bytes);
    export.can_trim = volume.can_trim;
    export.can_fast_zero = volume.can_fast_zero;
    export.tls_only = volume.tls_only;
    export
}

/// The exports of a worker's volumes.
pub(crate) struct ExportList<'a, C>(pub &'a C);

impl<C: Clients> Exports for ExportList<'_, C> {
    fn list(&self, each: &mut dyn FnMut(&ExportInfo)) {
        self.0.each_volume(&mut |volume| each(&export_of(volume)));
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let mut found = Vec::new();
        self.list(&mut |export| {
            if export.name == name || name.is_empty() {
                found.push(export.clone());
            }
        });
        // The empty name selects the only export, if there is exactly one.
        if found.len() == 1 { found.pop() } else { None }
    }
}
