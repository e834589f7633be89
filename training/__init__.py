"""Makes fluent-sd: a small text-to-image latent diffusion model in the Stable Diffusion 1 layout."""
