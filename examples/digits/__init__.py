"""Two training tasks on scikit-learn's bundled handwritten digits: recognise them, and restore noisy ones."""
