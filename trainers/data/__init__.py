"""Images for a trial: what data sets there are, who gets which images in which order, and how they reach the device."""
