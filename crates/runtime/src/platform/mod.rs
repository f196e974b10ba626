//! The system as the rest of the runtime sees it: events of sockets and files, locks with a rank,
//! descriptors, huge pages, the local time. Nothing here knows a volume or a line.

pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod locks;
pub(crate) mod mapping;
pub(crate) mod reactor;
